// TokenDecoder and DecodeStream: tokens to text, incrementally.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "model/tokenizers/json_fields.h"
#include "model/tokenizers/split.h"

namespace ovq::model {

// A stage of the decoder chain. A stage maps a list of tokens to a list of tokens; the text is the
// last list, joined.
struct DecoderStage {
  enum class Kind {
    kJoin,  // no decoder: tokens joined by spaces
    kByteLevel,
    kReplace,
    kByteFallback,
    kFuse,
    kStrip,
    kMetaspace,
    kWordPiece,
    kBpe
  };
  Kind kind = Kind::kJoin;
  // Whether the stage follows ByteLevel or Fuse: its input is a single token, the text itself,
  // which arrives in fragments.
  bool fused = false;
  Matcher matcher;      // kReplace
  std::string literal;  // kReplace: the pattern if it is a string; kStrip, kMetaspace: the
                        // character; kWordPiece: prefix; kBpe: suffix
  std::string content;  // kReplace
  int64_t start = 0;    // kStrip: most characters to remove, at the front and at the end
  int64_t stop = 0;
  bool flag = false;  // kMetaspace: the first token loses its spaces; kWordPiece: cleanup
};

// Immutable; any thread.
class TokenDecoder {
 public:
  // Reads the field `key` of the file.
  static absl::StatusOr<TokenDecoder> Read(JsonFields& file, std::string_view key);
  const std::vector<DecoderStage>& stages() const { return stages_; }
  bool reads_bytes() const;  // from the byte alphabet
  // The bytes that a token adds within a text; a part of a character stays one.
  std::string Bytes(std::string_view token) const;

 private:
  std::vector<DecoderStage> stages_;
};

// A run of the decoder over one answer. The pieces from Push and Finish are valid UTF-8 and
// together the decoded text; each comes as soon as no later token can change it. One thread.
class DecodeStream {
 public:
  // at_start: the tokens begin a text. Otherwise they continue one, and nothing is stripped at its
  // front.
  DecodeStream(const TokenDecoder& decoder, bool at_start);

  std::string Push(std::string_view token);
  std::string Finish();
  // Discards the text of the tokens so far, but not a character that they have begun.
  void Forget();

 private:
  struct State {
    bool first;             // no token so far
    int64_t left;           // characters that a fused kStrip may still remove at the front
    bool holds = false;     // kBpe: a token is held in `held`
    std::string held = "";  // text that waits for more
  };

  void Process(size_t stage, std::string_view token);
  void ProcessFragment(size_t stage, std::string_view text);
  void ProcessReplace(size_t stage, std::string_view text);
  void ProcessStrip(size_t stage, std::string_view text);
  void ProcessByteFallback(size_t stage, std::string_view token);
  void FlushBytes(size_t stage);
  void End(size_t stage);
  void Emit(size_t stage, std::string_view token) { Process(stage + 1, token); }

  const TokenDecoder& decoder_;
  std::vector<State> states_;
  std::string text_;  // output of the current call
  size_t most_ = 0;   // bytes that a Replace may make of what the current call has
};

}  // namespace ovq::model
