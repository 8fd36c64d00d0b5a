#include "model/tokenizer.h"

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/text.h"

namespace ovq {
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
  return TakeUtf8(pending_);
}

std::string Detokenizer::Finish() {
  std::string text = TakeUtf8(pending_);
  if (!pending_.empty()) text += kReplacementCharacter;
  pending_.clear();
  return text;
}

}  // namespace ovq
