#include "model/tokenizer.h"

#include <filesystem>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/problems.h"
#include "base/status_macros.h"
#include "base/text.h"
#include "model/tokenizers/json_fields.h"
#include "model/tokenizers/tokenizer_folder.h"

namespace ovq::model {

absl::StatusOr<std::unique_ptr<Tokenizer>> Tokenizer::Load(const std::string& folder,
                                                           const ModelConfig& config) {
  std::unique_ptr<Tokenizer> tokenizer(new Tokenizer);
  tokenizer->kind_ = config.tokenizer;
  tokenizer->byte_offset_ = config.tokenizer_byte_offset;
  tokenizer->bos_ = config.bos_token_id;
  tokenizer->silent_.insert(config.eos_token_ids.begin(), config.eos_token_ids.end());
  if (config.bos_token_id) tokenizer->silent_.insert(*config.bos_token_id);
  const std::string path = absl::StrCat(folder, "/tokenizer.model");
  if (tokenizer->kind_ == TokenizerKind::kBpe) {
    absl::StatusOr<std::unique_ptr<BpeTokenizer>> bpe =
        BpeTokenizer::Load(folder, config.vocab_size);
    std::error_code error;
    if (absl::IsUnimplemented(bpe.status()) && std::filesystem::exists(path, error)) {
      tokenizer->kind_ = TokenizerKind::kSentencePiece;
    } else if (!bpe.ok()) {
      return bpe.status();
    } else {
      tokenizer->bpe_ = *std::move(bpe);
    }
  }
  if (tokenizer->kind_ == TokenizerKind::kSentencePiece) {
    RETURN_IF_ERROR(tokenizer->LoadSentencePiece(folder, config.vocab_size));
  }
  return tokenizer;
}

absl::Status Tokenizer::LoadSentencePiece(const std::string& folder, int64_t vocab_size) {
  const std::string path = absl::StrCat(folder, "/tokenizer.model");
  std::string error;
  pieces_ = LoadPieces(path, &error);
  if (!pieces_) return absl::DataLossError(absl::StrCat(path, ": ", error));
  if (const int64_t size = pieces_->size; size > vocab_size) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": has ", size, " pieces, but vocab_size is ", vocab_size));
  }
  ASSIGN_OR_RETURN(const nlohmann::json beside, TokenizerConfig(folder));
  JsonFields fields(beside, "");
  if (!fields.BoolOr("add_bos_token", true)) bos_.reset();
  if (!fields.status().ok()) return InContext(TokenizerConfigPath(folder), fields.status());
  ASSIGN_OR_RETURN(const auto added, TokensBeside(folder, beside));
  const auto first = added.lower_bound(pieces_->size);
  if (first == added.end()) return absl::OkStatus();
  notes_.push_back(absl::StrCat(
      "tokenizer.model has no pieces for the tokens that tokenizer_config.json and "
      "added_tokens.json add, from ",
      Quoted(first->second), " with the id ", first->first,
      " on: they are not found in texts, and give none. A tokenizer.json of BPE would have them"));
  return absl::OkStatus();
}

int64_t Tokenizer::size() const {
  if (bpe_) return bpe_->size();
  return pieces_ ? pieces_->size : kind_ == TokenizerKind::kBytes ? 256 : 0;
}

bool Tokenizer::HasToken(int64_t id) const {
  if (bpe_) return bpe_->Token(id) != nullptr;
  return !pieces_ || (id >= 0 && id < pieces_->size);
}

std::map<int32_t, std::string> Tokenizer::special_tokens() const {
  std::map<int32_t, std::string> tokens;
  if (bpe_) tokens = bpe_->special_tokens();
  if (pieces_) tokens = pieces_->controls;
  for (const int32_t id : silent_) tokens.try_emplace(id, Bytes(id));
  return tokens;
}

std::string Tokenizer::Bytes(int32_t id) const {
  if (bpe_) {
    const std::string* token = bpe_->Token(id);
    if (token == nullptr) return "";
    return IsSilent(id) ? *token : bpe_->decoder().Bytes(*bpe_->ForDecoder(id));
  }
  if (!pieces_) return Piece(id, /*first=*/false);
  const auto control = pieces_->controls.find(id);
  return control != pieces_->controls.end() ? control->second : pieces_->text(id, /*first=*/false);
}

bool Tokenizer::IsSilent(int32_t id) const {
  return silent_.contains(id) || (bpe_ && bpe_->IsSpecial(id)) ||
         (pieces_ && pieces_->controls.contains(id));
}

const std::vector<std::string>& Tokenizer::notes() const { return bpe_ ? bpe_->notes() : notes_; }

absl::StatusOr<std::vector<int32_t>> Tokenizer::Encode(std::string_view text, bool add_bos) const {
  if (!has_text()) {
    return absl::FailedPreconditionError("this model has no tokenizer: send token ids");
  }
  if (bpe_) {
    absl::StatusOr<std::vector<int32_t>> ids = bpe_->Encode(text);
    const std::vector<int32_t>& before = bpe_->ends().before;
    if (ids.ok() && add_bos) ids->insert(ids->begin(), before.begin(), before.end());
    return ids;
  }
  std::vector<int32_t> ids;
  if (add_bos && bos_) ids.push_back(*bos_);
  if (kind_ == TokenizerKind::kBytes) {
    for (char c : text) ids.push_back(static_cast<uint8_t>(c) + byte_offset_);
    return ids;
  }
  std::string error;
  if (!pieces_->encode(text, &ids, &error)) {
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
  if (kind_ == TokenizerKind::kSentencePiece) return pieces_->text(id, first);
  const int64_t byte = int64_t{id} - byte_offset_;
  return byte >= 0 && byte < 256 ? std::string(1, static_cast<char>(byte)) : "";
}

bool Tokenizer::Begins(int32_t id) const {
  if (kind_ == TokenizerKind::kNone || silent_.contains(id)) return false;
  return kind_ == TokenizerKind::kSentencePiece ? pieces_->begins(id) : !Piece(id, true).empty();
}

Detokenizer::Detokenizer(const Tokenizer* tokenizer, bool at_start, const std::set<int32_t>* shown)
    : tokenizer_(tokenizer), shown_(shown), first_(at_start) {
  if (tokenizer->bpe_) stream_.emplace(tokenizer->bpe_->decoder(), at_start);
}

void Detokenizer::Precede(std::span<const int32_t> ids) {
  for (int32_t id : ids) Push(id);
  if (stream_) stream_->Forget();
}

std::string Detokenizer::Push(int32_t id) {
  if (stream_) {
    const BpeTokenizer& bpe = *tokenizer_->bpe_;
    const std::string* token = bpe.ForDecoder(id);
    const bool shown = shown_ != nullptr && shown_->contains(id);
    const bool silent = tokenizer_->IsSilent(id) && !shown;
    return token == nullptr || silent ? "" : stream_->Push(*token);
  }
  pending_ += tokenizer_->Piece(id, first_);
  if (first_ && tokenizer_->Begins(id)) first_ = false;
  return ConsumeUtf8(pending_);
}

std::string Detokenizer::Finish() {
  if (stream_) return stream_->Finish();
  std::string text = ConsumeUtf8(pending_);
  if (!pending_.empty()) text += kReplacementCharacter;
  pending_.clear();
  return text;
}

}  // namespace ovq::model
