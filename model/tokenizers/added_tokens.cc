#include "model/tokenizers/added_tokens.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/problems.h"
#include "base/status_macros.h"
#include "base/text.h"
#include "model/tokenizers/chars.h"

namespace ovq::model {
namespace {

uint64_t Edge(uint32_t node, char byte) { return uint64_t{node} << 8 | static_cast<uint8_t>(byte); }

AddedToken ReadToken(JsonFields& fields, int64_t vocab_size) {
  AddedToken token;
  token.content = fields.String("content");
  token.special = fields.BoolOr("special", false);
  token.id = static_cast<int32_t>(fields.Int("id", 0, token.special ? INT32_MAX : vocab_size - 1));
  token.single_word = fields.BoolOr("single_word", false);
  token.lstrip = fields.BoolOr("lstrip", false);
  token.rstrip = fields.BoolOr("rstrip", false);
  token.normalized = fields.BoolOr("normalized", !token.special);
  return token;
}

bool TouchesWord(std::string_view before, std::string_view behind) {
  size_t at = 0;
  return (!before.empty() && IsWordChar(LastChar(before))) ||
         (!behind.empty() && IsWordChar(NextChar(behind, at)));
}

}  // namespace

void StringTrie::Add(std::string_view string, uint32_t value) {
  if (string.empty()) return;
  begins_[static_cast<uint8_t>(string.front())] = true;
  uint32_t node = 0;
  for (char byte : string) {
    const auto [child, added] =
        children_.emplace(Edge(node, byte), static_cast<uint32_t>(values_.size()));
    if (added) values_.push_back(kNone);
    node = child->second;
  }
  if (values_[node] == kNone) values_[node] = value;
}

bool StringTrie::Find(std::string_view text, size_t from, Match& match) const {
  if (children_.empty()) return false;
  for (size_t at = from; at < text.size(); ++at) {
    if (begins_[static_cast<uint8_t>(text[at])] && LongestAt(text, at, match)) return true;
  }
  return false;
}

bool StringTrie::LongestAt(std::string_view text, size_t at, Match& match) const {
  uint32_t node = 0;
  bool found = false;
  for (size_t end = at; end < text.size();) {
    const auto child = children_.find(Edge(node, text[end]));
    if (child == children_.end()) break;
    node = child->second;
    ++end;
    if (values_[node] == kNone) continue;
    match = {at, end, values_[node]};
    found = true;
  }
  return found;
}

absl::StatusOr<AddedTokens> AddedTokens::Read(JsonFields& file, std::string_view key,
                                              const Vocab& vocab, int64_t vocab_size,
                                              const Normalizer& normalizer) {
  AddedTokens added;
  if (!file.Has(key)) return added;
  std::vector<JsonFields> entries = file.Children(key);
  if (!file.status().ok()) return file.status();
  absl::Status problems;
  for (size_t i = 0; i < entries.size(); ++i) {
    AddedToken token = ReadToken(entries[i], vocab_size);
    AddProblems(problems, entries[i].status());
    if (!entries[i].status().ok() || token.content.empty())
      continue;  // the library skips empty ones
    const std::string path = absl::StrCat(file.FieldPath(key), "[", i, "]");
    if (token.id >= vocab_size) {
      added.notes_.push_back(absl::StrCat(path, ": ", Quoted(token.content), " has the id ",
                                          token.id, ", for which the model has no row: left out"));
      continue;
    }
    AddProblems(problems, added.Add(std::move(token), path, vocab));
  }
  AddProblems(problems, added.FillTries(normalizer));
  if (!problems.ok()) return problems;
  return added;
}

absl::Status AddedTokens::Add(AddedToken token, const std::string& path, const Vocab& vocab) {
  const auto contradicts = [&](std::string_view other, int64_t other_id, std::string_view where) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": ", Quoted(token.content), " has the id ", token.id, ", but ",
                     std::string(where), " has ", Quoted(other), " with the id ", other_id));
  };
  // A whole word and the same text inside words may be two tokens.
  const int32_t in_vocab = token.single_word ? -1 : vocab.Find(token.content);
  if (in_vocab >= 0 && in_vocab != token.id) {
    notes_.push_back(absl::StrCat(path, ": ", Quoted(token.content), " has the id ", token.id,
                                  ", but in model.vocab ", in_vocab,
                                  ", which counts as in huggingface/tokenizers"));
    token.id = in_vocab;
  }
  const std::string* same_id = vocab.Token(token.id);
  if (same_id != nullptr && *same_id != token.content) {
    return contradicts(*same_id, token.id, "model.vocab");
  }
  for (const AddedToken* other : {Find(token.id), Find(token.content)}) {
    if (other == nullptr) continue;
    if (*other == token) return absl::OkStatus();
    return contradicts(other->content, other->id, "another added token");
  }
  by_id_[token.id] = static_cast<uint32_t>(tokens_.size());
  by_content_[token.content] = static_cast<uint32_t>(tokens_.size());
  tokens_.push_back(std::move(token));
  return absl::OkStatus();
}

// Adds special tokens first: of two that normalize to the same text the library then takes that
// one.
absl::Status AddedTokens::FillTries(const Normalizer& normalizer) {
  for (const bool special : {true, false}) {
    for (uint32_t i = 0; i < tokens_.size(); ++i) {
      if (tokens_[i].special != special) continue;
      std::string content = tokens_[i].content;
      if (tokens_[i].normalized) {
        RETURN_IF_ERROR(normalizer.Apply(content));
      }
      (tokens_[i].normalized ? normalized_ : raw_).Add(content, i);
    }
  }
  return absl::OkStatus();
}

// White space that a token includes does not count as matched, as in the library's find_matches:
// the search continues right after the token's own text. If it finds another token in that white
// space, the text goes on behind that one.
void AddedTokens::Cut(std::string_view text, bool normalized, std::vector<TextPart>& parts) const {
  const StringTrie& trie = normalized ? normalized_ : raw_;
  size_t done = 0;
  StringTrie::Match match{};
  for (size_t from = 0; trie.Find(text, from, match); from = match.end) {
    const AddedToken& token = tokens_[match.value];
    const std::string_view before = text.substr(0, match.begin), behind = text.substr(match.end);
    if (token.single_word && TouchesWord(before, behind)) continue;
    size_t begin = match.begin, end = match.end;
    if (token.lstrip) begin = std::max(StripWhitespace(before, false, true).size(), done);
    if (token.rstrip) end = text.size() - StripWhitespace(behind, true, false).size();
    if (begin > done) parts.push_back({text.substr(done, begin - done)});
    parts.push_back({"", token.id});
    done = end;
  }
  if (done < text.size()) parts.push_back({text.substr(done)});
}

const AddedToken* AddedTokens::Find(int64_t id) const {
  const auto it = by_id_.find(static_cast<int32_t>(id));
  return it == by_id_.end() ? nullptr : &tokens_[it->second];
}

const AddedToken* AddedTokens::Find(std::string_view content) const {
  const auto it = by_content_.find(AbslView(content));
  return it == by_content_.end() ? nullptr : &tokens_[it->second];
}

}  // namespace ovq::model
