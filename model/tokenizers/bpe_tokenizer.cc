#include "model/tokenizers/bpe_tokenizer.h"

#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/problems.h"
#include "base/status_macros.h"
#include "base/text.h"
#include "model/tokenizers/byte_alphabet.h"
#include "model/tokenizers/chars.h"
#include "model/tokenizers/json_fields.h"

namespace ovq::model {

absl::StatusOr<std::unique_ptr<BpeTokenizer>> BpeTokenizer::Load(const std::string& folder,
                                                                 int64_t vocab_size) {
  ASSIGN_OR_RETURN(TokenizerFolder read, TokenizerFolder::Read(folder, vocab_size));
  absl::StatusOr<std::unique_ptr<BpeTokenizer>> tokenizer = Make(std::move(read.file), vocab_size);
  absl::Status problems = tokenizer.status();
  if (tokenizer.ok()) {
    AddProblems(problems, (*tokenizer)->SetEnd(read.bos, /*at_front=*/true));
    AddProblems(problems, (*tokenizer)->SetEnd(read.eos, /*at_front=*/false));
  }
  if (!problems.ok()) return InContext(read.path, problems);
  return tokenizer;
}

absl::StatusOr<std::unique_ptr<BpeTokenizer>> BpeTokenizer::Make(TokenizerFile file,
                                                                 int64_t vocab_size) {
  std::unique_ptr<BpeTokenizer> tokenizer(new BpeTokenizer);
  JsonFields fields(file.rest, "");
  absl::Status problems = file.beyond;
  absl::StatusOr<Vocab> vocab = Vocab::Make(std::move(file.vocab), "model.vocab");
  AddProblems(problems, vocab.status());
  if (!vocab.ok()) return problems;
  JsonFields model = fields.Child("model");
  absl::StatusOr<std::unique_ptr<Bpe>> bpe = Bpe::Make(model, *std::move(vocab), file.merges);
  AddProblems(problems, bpe.status());
  if (!bpe.ok()) return problems;
  tokenizer->bpe_ = *std::move(bpe);
  AddProblems(problems, tokenizer->ReadStages(fields, vocab_size));
  if (!problems.ok()) return problems;
  tokenizer->FindOwnTexts(file.merges);
  tokenizer->Note(fields);
  return tokenizer;
}

absl::Status BpeTokenizer::ReadStages(JsonFields& file, int64_t vocab_size) {
  absl::Status problems;
  const auto put = [&problems](auto read, auto& stage) {
    AddProblems(problems, read.status());
    if (read.ok()) stage = *std::move(read);
  };
  put(Normalizer::Read(file, "normalizer"), normalizer_);
  put(AddedTokens::Read(file, "added_tokens", bpe_->vocab(), vocab_size, normalizer_), added_);
  put(PreTokenizer::Read(file, "pre_tokenizer", bpe_->has_all_bytes()), pre_tokenizer_);
  put(PostProcessor::Read(file, "post_processor", vocab_size), ends_);
  put(TokenDecoder::Read(file, "decoder"), decoder_);
  if (pre_tokenizer_.gives_bytes()) bpe_->EnableByteInput();
  return problems;
}

// A word of the vocabulary is a character or the result of a merge; what such a token says is
// bytes, even if it is an added token, too.
void BpeTokenizer::FindOwnTexts(const Bpe::MergeList& merges) {
  if (!decoder_.reads_bytes()) return;
  absl::flat_hash_map<std::string, int32_t> own;  // ids by text
  for (const AddedToken& token : added_.tokens()) {
    const std::string& text = token.content;
    const bool is_char = CountChars(text) == 1 && bpe_->vocab().Token(token.id) != nullptr;
    if (!is_char && CharsToBytes(text).value_or(text) != text) own[text] = token.id;
  }
  for (const auto& [left, right] : merges) {
    if (!own.empty()) own.erase(left + right);
  }
  for (const auto& [text, id] : own) own_texts_[id] = BytesToChars(text);
}

void BpeTokenizer::Note(JsonFields& file) {
  notes_ = added_.notes();
  for (const char* unused : {"truncation", "padding"}) {
    if (file.Has(unused)) {
      notes_.push_back(absl::StrCat(unused, " is set, which is for training: it has no effect"));
    }
  }
  const nlohmann::json* decoder = file.Find("decoder");
  const bool byte_level = decoder != nullptr && decoder->value("type", "") == "ByteLevel";
  if (byte_level && !bpe_->has_all_bytes()) {
    notes_.push_back("the vocabulary has no token for some bytes: text with them loses them");
  }
}

// Follows transformers' add_bos_token and add_eos_token: the token occurs there once or not at all.
absl::Status BpeTokenizer::SetEnd(const TokenizerFolder::End& end, bool at_front) {
  if (!end.wanted || (!*end.wanted && end.token.empty())) return absl::OkStatus();
  if (end.token.empty()) {
    const char* const role = at_front ? "bos_token" : "eos_token";
    return absl::InvalidArgumentError(absl::StrCat("tokenizer_config.json has add_", role,
                                                   ", but neither it nor special_tokens_map.json ",
                                                   "names the ", role));
  }
  const AddedToken* added = added_.Find(std::string_view(end.token));
  const int32_t id = added != nullptr ? added->id : bpe_->vocab().Find(end.token);
  if (id < 0) {
    return absl::InvalidArgumentError(absl::StrCat("has no token ", Quoted(end.token),
                                                   ", which tokenizer_config.json names as ",
                                                   at_front ? "bos_token" : "eos_token"));
  }
  std::vector<int32_t>& ids = at_front ? ends_.before : ends_.after;
  const bool there = !ids.empty() && (at_front ? ids.front() : ids.back()) == id;
  if (there == *end.wanted) return absl::OkStatus();
  const auto place = at_front ? ids.begin() : ids.end();
  if (*end.wanted) {
    ids.insert(place, id);
  } else {
    ids.erase(at_front ? place : place - 1);
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<int32_t>> BpeTokenizer::Encode(std::string_view text) const {
  std::string valid;
  if (FirstInvalidUtf8(text)) {
    valid = ValidUtf8(std::string(text));
    text = valid;
  }
  std::vector<int32_t> ids;
  RETURN_IF_ERROR(EncodeParts(text, /*normalized=*/false, /*at_start=*/true, ids));
  return ids;
}

absl::Status BpeTokenizer::EncodeParts(std::string_view text, bool normalized, bool at_start,
                                       std::vector<int32_t>& ids) const {
  std::vector<TextPart> parts;
  added_.Cut(text, normalized, parts);
  for (const TextPart& part : parts) {
    const bool first = at_start && part.text.data() == text.data();
    if (part.id >= 0) {
      ids.push_back(part.id);
    } else if (normalized) {
      RETURN_IF_ERROR(EncodeNormalized(part.text, first, ids));
    } else {
      std::string changed(part.text);
      RETURN_IF_ERROR(normalizer_.Apply(changed));
      RETURN_IF_ERROR(EncodeParts(changed, /*normalized=*/true, first, ids));
    }
  }
  return absl::OkStatus();
}

absl::Status BpeTokenizer::EncodeNormalized(std::string_view text, bool at_start,
                                            std::vector<int32_t>& ids) const {
  Words words(std::string(text), at_start);
  RETURN_IF_ERROR(pre_tokenizer_.Apply(words));
  for (const TextSpan& span : words.spans) {
    bpe_->Encode(std::string_view(words.text).substr(span.begin, span.end - span.begin), ids);
  }
  return absl::OkStatus();
}

const std::string* BpeTokenizer::Token(int64_t id) const {
  const AddedToken* added = added_.Find(id);
  return added != nullptr ? &added->content : bpe_->vocab().Token(id);
}

const std::string* BpeTokenizer::ForDecoder(int64_t id) const {
  const auto own = own_texts_.find(static_cast<int32_t>(id));
  return own == own_texts_.end() ? Token(id) : &own->second;
}

int64_t BpeTokenizer::size() const {
  auto size = static_cast<int64_t>(bpe_->vocab().entries().size());
  for (const AddedToken& token : added_.tokens()) {
    if (bpe_->vocab().Token(token.id) == nullptr) ++size;
  }
  return size;
}

std::map<int32_t, std::string> BpeTokenizer::special_tokens() const {
  std::map<int32_t, std::string> tokens;
  for (const AddedToken& token : added_.tokens()) {
    if (token.special) tokens[token.id] = token.content;
  }
  return tokens;
}

bool BpeTokenizer::IsSpecial(int64_t id) const {
  const AddedToken* added = added_.Find(id);
  return added != nullptr && added->special;
}

}  // namespace ovq::model
