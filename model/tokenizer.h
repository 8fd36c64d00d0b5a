// Text to token ids and back. Immutable after Load; any thread.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "model/config.h"

namespace sentencepiece {
class SentencePieceProcessor;
}

namespace ovq {

class Tokenizer {
 public:
  // InvalidArgument or DataLoss naming the file; a vocabulary larger than the model's is an error.
  static absl::StatusOr<std::unique_ptr<Tokenizer>> Load(const std::string& folder,
                                                         const ModelConfig& config);
  ~Tokenizer();

  bool has_text() const { return kind_ != TokenizerKind::kNone; }
  // FailedPrecondition if the model has no tokenizer. add_bos prepends bos_token_id if it has one.
  absl::StatusOr<std::vector<int32_t>> Encode(std::string_view text, bool add_bos) const;
  // Special tokens (bos, eos, ids without text) give nothing.
  absl::StatusOr<std::string> Decode(std::span<const int32_t> ids) const;
  // The bytes one token adds to the text; SentencePiece: "▁" as a space, byte pieces as bytes.
  std::string Piece(int32_t id, bool first) const;

 private:
  Tokenizer() = default;
  TokenizerKind kind_ = TokenizerKind::kNone;
  int64_t vocab_size_ = 0;
  int32_t byte_offset_ = 0;
  std::optional<int32_t> bos_;
  std::unique_ptr<sentencepiece::SentencePieceProcessor> pieces_;
};

// Turns a stream of tokens into a stream of valid UTF-8: an unfinished sequence is held back, bytes
// that can never become valid are replaced by U+FFFD. One per generated sequence; one thread.
class Detokenizer {
 public:
  explicit Detokenizer(const Tokenizer* tokenizer) : tokenizer_(tokenizer) {}
  std::string Push(int32_t id);
  std::string Finish();  // what was held back, as U+FFFD where incomplete

 private:
  const Tokenizer* tokenizer_;
  std::string pending_;
  bool first_ = true;
};

}  // namespace ovq
