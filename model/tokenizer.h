// Text to token ids and back. Immutable after Load; any thread.
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

namespace ovq {

class Tokenizer {
 public:
  // InvalidArgument, DataLoss or Unimplemented naming the file; a vocabulary larger than the
  // model's is an error.
  static absl::StatusOr<std::unique_ptr<Tokenizer>> Load(const std::string& folder,
                                                         const ModelConfig& config);

  bool has_text() const { return kind_ != TokenizerKind::kNone; }
  TokenizerKind kind() const { return kind_; }
  int64_t size() const;             // tokens that have a text or a meaning
  bool HasToken(int64_t id) const;  // of those with bytes, every id is one
  // Those that mark something, by id, with their texts ("" where none is known): bos, eos and what
  // tokenizer.json calls special.
  std::map<int32_t, std::string> special_tokens() const;
  // What a log says once of the files.
  const std::vector<std::string>& notes() const;

  // FailedPrecondition if the model has no tokenizer. add_bos prepends what begins a text: of
  // tokenizer.json what its post-processor puts there, else bos_token_id if the model has one.
  absl::StatusOr<std::vector<int32_t>> Encode(std::string_view text, bool add_bos) const;
  // Valid UTF-8, as a Detokenizer gives it. Special tokens (bos, eos, those that tokenizer.json
  // calls so) and ids without text give nothing.
  absl::StatusOr<std::string> Decode(std::span<const int32_t> ids) const;

 private:
  friend class Detokenizer;
  Tokenizer() = default;
  absl::Status LoadPieces(const std::string& folder, int64_t vocab_size);
  // The bytes one token adds to the text; SentencePiece: "▁" as a space (at the beginning of a text
  // as SentencePiece's own Decode), byte pieces as bytes. Not of kBpe.
  std::string Piece(int32_t id, bool first) const;
  // Whether the text has begun after a first token `id`. Not of kBpe.
  bool Begins(int32_t id) const;

  TokenizerKind kind_ = TokenizerKind::kNone;
  int32_t byte_offset_ = 0;
  std::optional<int32_t> bos_;
  std::set<int32_t> silent_;            // bos and eos
  std::unique_ptr<PieceModel> pieces_;  // kSentencePiece only
  std::unique_ptr<BpeTokenizer> bpe_;   // kBpe only
};

// Turns a stream of tokens into a stream of valid UTF-8: an unfinished sequence is held back, bytes
// that can never become valid are replaced by U+FFFD, one for each maximal subpart of a character.
// One per generated sequence; one thread.
class Detokenizer {
 public:
  // at_start false: the tokens continue a text, so the first one keeps its leading space.
  explicit Detokenizer(const Tokenizer* tokenizer, bool at_start = true);
  // Tokens before the first Push, whose text is not wanted: the last of them may have begun a
  // character that the first pushed one completes.
  void Precede(std::span<const int32_t> ids);
  std::string Push(int32_t id);
  std::string Finish();  // what was held back, as U+FFFD where incomplete

 private:
  const Tokenizer* tokenizer_;
  std::optional<DecodeStream> stream_;  // kBpe only, which needs none of the others
  std::string pending_;
  bool first_;
};

}  // namespace ovq
