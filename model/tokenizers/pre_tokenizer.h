// PreTokenizer: splits a normalized text into the words that the model sees one by one.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "model/tokenizers/json_fields.h"
#include "model/tokenizers/split.h"

namespace ovq::model {

// A text and the words it is split into: nonempty, in order, not overlapping. Text between two
// words is dropped.
struct Words {
  explicit Words(std::string whole, bool starts)
      : text(std::move(whole)),
        spans(text.empty() ? 0 : 1, TextSpan{0, text.size()}),
        at_start(starts) {}
  std::string text;
  std::vector<TextSpan> spans;
  bool at_start;  // the text begins the whole input
};

// Immutable; any thread.
class PreTokenizer {
 public:
  // Reads the field `key` of the file; absent: one word. keep_bytes: a final ByteLevel stage leaves
  // the bytes as they are, for a model that takes bytes.
  static absl::StatusOr<PreTokenizer> Read(JsonFields& file, std::string_view key, bool keep_bytes);

  // Splits further. Errors are those of Regex.
  absl::Status Apply(Words& words) const;
  // Whether the words are raw bytes, which the model's vocabulary writes in the byte alphabet.
  bool gives_bytes() const { return gives_bytes_; }

  // A stage changes the text, the words, or both.
  using Stage = std::function<absl::Status(Words&)>;

 private:
  std::vector<Stage> stages_;
  bool gives_bytes_ = false;
};

}  // namespace ovq::model
