// Tokenizer: text to token ids and back. Immutable after Load; any thread.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "model/config.h"
#include "model/piece_model.h"
#include "model/tokenizers/bpe_tokenizer.h"

namespace ovq::model {

class Tokenizer {
 public:
  // InvalidArgument, DataLoss or Unimplemented naming the file. A vocabulary larger than the
  // model's is an error.
  static absl::StatusOr<std::unique_ptr<Tokenizer>> Load(const std::string& folder,
                                                         const ModelConfig& config);

  bool has_text() const { return kind_ != TokenizerKind::kNone; }
  TokenizerKind kind() const { return kind_; }
  int64_t size() const;             // number of tokens with a text or a meaning
  bool HasToken(int64_t id) const;  // every id, for tokenizers that are not kBpe or kSentencePiece
  // Special tokens by id, with their texts ("" if unknown): bos, eos, those that tokenizer.json
  // calls special, and SentencePiece's control pieces.
  std::map<int32_t, std::string> special_tokens() const;
  // Remarks on the files, for the log.
  const std::vector<std::string>& notes() const;

  // FailedPrecondition if the model has no tokenizer. add_bos prepends the beginning of a text:
  // with tokenizer.json the tokens of its post-processor, else bos_token_id if the model has one
  // and no tokenizer_config.json takes it away (add_bos_token).
  absl::StatusOr<std::vector<int32_t>> Encode(std::string_view text, bool add_bos) const;
  // Valid UTF-8, as from a Detokenizer. Special tokens (bos, eos, those of tokenizer.json) and ids
  // without text give nothing.
  absl::StatusOr<std::string> Decode(std::span<const int32_t> ids) const;
  // The bytes that a token adds to a text, which need not be UTF-8 by themselves; those of its text
  // for a special token, which adds nothing. Empty for ids without a text.
  std::string Bytes(int32_t id) const;
  bool IsSilent(int32_t id) const;  // a special token: it adds nothing to a text

 private:
  friend class Detokenizer;
  Tokenizer() = default;
  // Reads tokenizer.model and what files beside it say of it.
  absl::Status LoadSentencePiece(const std::string& folder, int64_t vocab_size);
  // The bytes one token adds to the text. SentencePiece: "▁" is a space (at the beginning of a text
  // as in SentencePiece's own Decode), byte pieces are bytes. Not for kBpe.
  std::string Piece(int32_t id, bool first) const;
  // Whether the text has begun after a first token `id`. Not for kBpe.
  bool Begins(int32_t id) const;

  TokenizerKind kind_ = TokenizerKind::kNone;
  int32_t byte_offset_ = 0;
  std::optional<int32_t> bos_;
  std::set<int32_t> silent_;           // bos and eos, which give no text
  std::optional<PieceModel> pieces_;   // kSentencePiece only
  std::vector<std::string> notes_;     // kSentencePiece only
  std::unique_ptr<BpeTokenizer> bpe_;  // kBpe only
};

// Turns a stream of tokens into a stream of valid UTF-8. It holds back an unfinished sequence and
// replaces bytes that can never become valid by U+FFFD, one for each maximal subpart of a
// character. One per generated sequence; one thread.
class Detokenizer {
 public:
  // at_start false: the tokens continue a text, so the first one keeps its leading space.
  // shown: special tokens that have a text here, and outlives it; null: none.
  explicit Detokenizer(const Tokenizer* tokenizer, bool at_start = true,
                       const std::set<int32_t>* shown = nullptr);
  // Gives the tokens before the first Push, whose text is not wanted: the last of them may have
  // begun a character that the first pushed token completes.
  void Precede(std::span<const int32_t> ids);
  std::string Push(int32_t id);
  std::string Finish();  // the text held back, U+FFFD where incomplete

 private:
  const Tokenizer* tokenizer_;
  const std::set<int32_t>* shown_;
  std::optional<DecodeStream> stream_;  // kBpe only, in place of the others
  std::string pending_;
  bool first_;
};

}  // namespace ovq::model
