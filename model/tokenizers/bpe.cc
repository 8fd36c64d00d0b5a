#include "model/tokenizers/bpe.h"

#include <algorithm>
#include <optional>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status_macros.h"
#include "base/text.h"
#include "model/tokenizers/byte_alphabet.h"
#include "model/tokenizers/chars.h"

namespace ovq::model {
namespace {

constexpr char32_t kLowChars = 0x3000;
constexpr size_t kLongWord = 64;  // bytes; in shorter words a search for split points does not pay

uint64_t PackPair(char32_t c, char32_t d) { return uint64_t{c} << 32 | d; }

std::string FallbackToken(int byte) { return absl::StrFormat("<0x%02X>", byte); }

absl::Status CheckDropout(JsonFields& model) {
  const nlohmann::json* dropout = model.Find("dropout");
  if (dropout != nullptr && !(dropout->is_number() && dropout->get<double>() == 0)) {
    model.Fail("dropout", absl::StrCat("expected null or 0, since it is for training, got ",
                                       JsonKindName(*dropout)));
  }
  return model.status();
}

}  // namespace

absl::StatusOr<std::unique_ptr<Bpe>> Bpe::Make(JsonFields& model, Vocab vocab,
                                               const MergeList& merges) {
  std::unique_ptr<Bpe> bpe(new Bpe(std::move(vocab)));
  absl::Status status = CheckDropout(model);
  if (status.ok()) status = bpe->ReadOptions(model);
  if (status.ok()) bpe->IndexChars();
  if (status.ok()) status = bpe->AddMerges(merges);
  if (!status.ok()) return status;
  return bpe;
}

absl::Status Bpe::ReadOptions(JsonFields& model) {
  prefix_ = model.StringOr("continuing_subword_prefix", "");
  suffix_ = model.StringOr("end_of_word_suffix", "");
  fuse_unk_ = model.BoolOr("fuse_unk", false);
  byte_fallback_ = model.BoolOr("byte_fallback", false);
  ignore_merges_ = model.BoolOr("ignore_merges", false);
  const std::string unk = model.StringOr("unk_token", "");
  if (model.Has("unk_token")) {
    unk_ = vocab_.Find(unk);
    if (unk_ < 0) model.Fail("unk_token", absl::StrCat(Quoted(unk), " is not in model.vocab"));
  }
  return model.status();
}

void Bpe::IndexChars() {
  low_chars_.assign(kLowChars, -1);
  for (const auto& [token, id] : vocab_.entries()) {
    if (token.empty() || token.size() > 4) continue;
    size_t at = 0;
    const char32_t c = NextChar(token, at);
    if (at != token.size()) continue;
    if (c < kLowChars) {
      low_chars_[c] = id;
    } else {
      high_chars_[c] = id;
    }
  }
  for (int byte = 0; byte < 256; ++byte) {
    std::string c;
    AppendByteChar(static_cast<uint8_t>(byte), c);
    byte_ids_[byte] = vocab_.Find(c);
    fallback_ids_[byte] = vocab_.Find(FallbackToken(byte));
  }
  has_all_bytes_ = prefix_.empty() && suffix_.empty() &&
                   std::ranges::none_of(byte_ids_, [](int32_t id) { return id < 0; });
}

absl::Status Bpe::AddMerges(const MergeList& merges) {
  merges_.Reserve(merges.size());
  can_cut_ = prefix_.empty() && suffix_.empty() && !ignore_merges_;
  for (size_t rank = 0; rank < merges.size(); ++rank) {
    const auto& [left, right] = merges[rank];
    RETURN_IF_ERROR(AddMerge(left, right, rank));
  }
  return absl::OkStatus();
}

absl::Status Bpe::AddMerge(const std::string& left, const std::string& right, size_t rank) {
  const auto fail = [&](std::string_view what) {
    return absl::InvalidArgumentError(absl::StrCat("model.merges[", rank, "]: ", Quoted(left),
                                                   " and ", Quoted(right), std::string(what)));
  };
  const std::string joined = left + right.substr(std::min(prefix_.size(), right.size()));
  const int32_t ids[] = {vocab_.Find(left), vocab_.Find(right), vocab_.Find(joined)};
  if (ids[0] < 0 || ids[1] < 0) return fail(": expected two tokens of model.vocab");
  if (ids[2] < 0) return fail(absl::StrCat(" give ", Quoted(joined), ", not in model.vocab"));
  merges_.Add(ids[0], ids[1], ids[2]);
  for (const int32_t part : {ids[0], ids[1]}) {
    // A symbol other than its characters' own: merges with it say nothing of adjacent characters.
    const bool foreign =
        part == unk_ || std::ranges::find(fallback_ids_, part) != fallback_ids_.end();
    if (foreign) can_cut_ = false;
  }
  for (size_t at = 0; can_cut_ && at < joined.size();) {
    const char32_t c = NextChar(joined, at);
    size_t next = at;
    if (next < joined.size()) inner_pairs_.insert(PackPair(c, NextChar(joined, next)));
  }
  return absl::OkStatus();
}

int32_t Bpe::FindChar(char32_t c) const {
  if (c < kLowChars) return low_chars_[c];
  const auto it = high_chars_.find(c);
  return it == high_chars_.end() ? -1 : it->second;
}

int32_t Bpe::FindWhole(std::string_view word) const {
  if (word.size() > vocab_.longest()) return -1;
  return byte_input_ ? vocab_.Find(BytesToChars(word)) : vocab_.Find(word);
}

void Bpe::Encode(std::string_view word, std::vector<int32_t>& ids) const {
  if (byte_input_ || !can_cut_ || word.size() <= kLongWord) return EncodePart(word, ids);
  for (size_t begin = 0; begin < word.size();) {
    const size_t end = FindPartEnd(word, begin);
    EncodePart(word.substr(begin, end - begin), ids);
    begin = end;
  }
}

size_t Bpe::FindPartEnd(std::string_view word, size_t begin) const {
  size_t at = begin;
  char32_t before = NextChar(word, at);
  bool known_before = FindChar(before) >= 0;
  while (at < word.size()) {
    const size_t here = at;
    const char32_t c = NextChar(word, at);
    const bool known = FindChar(c) >= 0;
    if (known && known_before && !inner_pairs_.contains(PackPair(before, c))) return here;
    before = c;
    known_before = known;
  }
  return at;
}

void Bpe::EncodePart(std::string_view part, std::vector<int32_t>& ids) const {
  if (!WordCache::IsCacheable(part)) return Merge(part, ids);
  if (cache_.Find(part, ids)) return;
  const size_t n = ids.size();
  Merge(part, ids);
  cache_.Insert(part, ids.data() + n, ids.size() - n);
}

void Bpe::Merge(std::string_view part, std::vector<int32_t>& ids) const {
  if (ignore_merges_) {
    if (const int32_t whole = FindWhole(part); whole >= 0) return ids.push_back(whole);
  }
  std::vector<int32_t> symbols;
  symbols.reserve(part.size());
  AppendSymbols(part, symbols);
  merges_.Apply(symbols);
  ids.insert(ids.end(), symbols.begin(), symbols.end());
}

// An unknown token waits for the next known character or the end, as in the library's merge_word,
// so that others can be fused with it.
void Bpe::AppendSymbols(std::string_view part, std::vector<int32_t>& symbols) const {
  if (byte_input_) {
    for (char byte : part) symbols.push_back(byte_ids_[static_cast<uint8_t>(byte)]);
    return;
  }
  bool unk_waits = false;
  for (size_t at = 0; at < part.size();) {
    const size_t begin = at;
    const char32_t c = NextChar(part, at);
    const bool bare = (prefix_.empty() || begin == 0) && (suffix_.empty() || at < part.size());
    std::string dressed(bare ? "" : part.substr(begin, at - begin));
    if (!bare && begin > 0) dressed.insert(0, prefix_);
    if (!bare && at == part.size()) dressed += suffix_;
    const int32_t id = bare ? FindChar(c) : vocab_.Find(dressed);
    if (id >= 0) {
      if (unk_waits) symbols.push_back(unk_);
      unk_waits = false;
      symbols.push_back(id);
    } else if (byte_fallback_ &&
               AppendFallback(bare ? part.substr(begin, at - begin) : dressed, symbols)) {
      continue;
    } else if (unk_ >= 0) {
      if (unk_waits && !fuse_unk_) symbols.push_back(unk_);
      unk_waits = true;
    }
  }
  if (unk_waits) symbols.push_back(unk_);
}

bool Bpe::AppendFallback(std::string_view c, std::vector<int32_t>& symbols) const {
  const auto id_of = [&](char byte) { return fallback_ids_[static_cast<uint8_t>(byte)]; };
  if (std::ranges::any_of(c, [&](char byte) { return id_of(byte) < 0; })) return false;
  for (char byte : c) symbols.push_back(id_of(byte));
  return true;
}

}  // namespace ovq::model
