#include "model/tokenizer.h"

#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace ovq {
namespace {

constexpr std::string_view kReplacement = "\xef\xbf\xbd";  // U+FFFD

// The longest beginning of a text that is one character, the beginning of one, or invalid.
struct Utf8Prefix {
  enum class Kind { kCharacter, kIncomplete, kInvalid } kind;
  size_t bytes;
};

// By the table of well-formed sequences (Unicode 15, table 3-7): only the second byte's range
// depends on the first.
Utf8Prefix ParseUtf8(std::string_view text) {
  using Kind = Utf8Prefix::Kind;
  const auto byte = [&](size_t i) { return static_cast<uint8_t>(text[i]); };
  const uint8_t lead = byte(0);
  if (lead < 0x80) return {Kind::kCharacter, 1};
  if (lead < 0xc2 || lead > 0xf4) return {Kind::kInvalid, 1};
  const size_t bytes = lead < 0xe0 ? 2 : lead < 0xf0 ? 3 : 4;
  uint8_t low = lead == 0xe0 ? 0xa0 : lead == 0xf0 ? 0x90 : 0x80;
  uint8_t high = lead == 0xed ? 0x9f : lead == 0xf4 ? 0x8f : 0xbf;
  for (size_t i = 1; i < bytes; ++i) {
    if (i == text.size()) return {Kind::kIncomplete, i};
    if (byte(i) < low || byte(i) > high) return {Kind::kInvalid, i};
    low = 0x80;
    high = 0xbf;
  }
  return {Kind::kCharacter, bytes};
}

// Takes whole characters off the front of `pending`; what may still become one stays.
std::string TakeCharacters(std::string& pending) {
  std::string text;
  std::string_view rest = pending;
  while (!rest.empty()) {
    const Utf8Prefix prefix = ParseUtf8(rest);
    if (prefix.kind == Utf8Prefix::Kind::kIncomplete) break;
    text +=
        prefix.kind == Utf8Prefix::Kind::kCharacter ? rest.substr(0, prefix.bytes) : kReplacement;
    rest.remove_prefix(prefix.bytes);
  }
  pending.erase(0, pending.size() - rest.size());
  return text;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Tokenizer>> Tokenizer::Load(const std::string& folder,
                                                           const ModelConfig& config) {
  std::unique_ptr<Tokenizer> tokenizer(new Tokenizer);
  tokenizer->kind_ = config.tokenizer;
  tokenizer->byte_offset_ = config.tokenizer_byte_offset;
  tokenizer->bos_ = config.bos_token_id;
  tokenizer->silent_.insert(config.eos_token_ids.begin(), config.eos_token_ids.end());
  if (config.bos_token_id) tokenizer->silent_.insert(*config.bos_token_id);
  if (config.tokenizer != TokenizerKind::kSentencePiece) return tokenizer;

  const std::string path = absl::StrCat(folder, "/tokenizer.model");
  std::string error;
  tokenizer->pieces_ = PieceModel::Load(path, &error);
  if (!tokenizer->pieces_) return absl::DataLossError(absl::StrCat(path, ": ", error));
  if (tokenizer->pieces_->size() > config.vocab_size) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": has ", tokenizer->pieces_->size(),
                                                   " pieces, but vocab_size is ",
                                                   config.vocab_size));
  }
  return tokenizer;
}

absl::StatusOr<std::vector<int32_t>> Tokenizer::Encode(std::string_view text, bool add_bos) const {
  if (!has_text()) {
    return absl::FailedPreconditionError("this model has no tokenizer: send token ids");
  }
  std::vector<int32_t> ids;
  if (add_bos && bos_) ids.push_back(*bos_);
  if (kind_ == TokenizerKind::kBytes) {
    for (char c : text) ids.push_back(static_cast<uint8_t>(c) + byte_offset_);
    return ids;
  }
  std::string error;
  if (!pieces_->Encode(text, &ids, &error)) {
    return absl::InvalidArgumentError(absl::StrCat("text cannot be encoded: ", error));
  }
  return ids;
}

absl::StatusOr<std::string> Tokenizer::Decode(std::span<const int32_t> ids) const {
  if (!has_text()) {
    return absl::FailedPreconditionError("this model has no tokenizer: its tokens have no text");
  }
  Detokenizer detokenizer(this);
  std::string text;
  for (int32_t id : ids) text += detokenizer.Push(id);
  return text + detokenizer.Finish();
}

std::string Tokenizer::Piece(int32_t id, bool first) const {
  if (kind_ == TokenizerKind::kNone || silent_.contains(id)) return "";
  if (kind_ == TokenizerKind::kSentencePiece) return pieces_->Text(id, first);
  const int64_t byte = int64_t{id} - byte_offset_;
  return byte >= 0 && byte < 256 ? std::string(1, static_cast<char>(byte)) : "";
}

bool Tokenizer::Begins(int32_t id) const {
  if (kind_ == TokenizerKind::kNone || silent_.contains(id)) return false;
  return kind_ == TokenizerKind::kSentencePiece ? pieces_->Begins(id) : !Piece(id, true).empty();
}

std::string Detokenizer::Push(int32_t id) {
  pending_ += tokenizer_->Piece(id, first_);
  if (first_ && tokenizer_->Begins(id)) first_ = false;
  return TakeCharacters(pending_);
}

std::string Detokenizer::Finish() {
  std::string text = TakeCharacters(pending_);
  if (!pending_.empty()) text += kReplacement;
  pending_.clear();
  return text;
}

}  // namespace ovq
