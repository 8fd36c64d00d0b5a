// Regex: regular expressions of Oniguruma, the engine of huggingface/tokenizers, so that patterns
// of tokenizer.json mean the same here.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

struct re_pattern_buffer;

namespace ovq::model {

// Bytes [begin, end) of a text.
struct TextSpan {
  size_t begin = 0;
  size_t end = 0;
  bool operator==(const TextSpan&) const = default;
};

// Immutable; any thread.
class Regex {
 public:
  // InvalidArgument with the pattern and the engine's message; FailedPrecondition if the engine is
  // not installed.
  static absl::StatusOr<Regex> Compile(const std::string& pattern);

  // Appends all matches in valid UTF-8, left to right; an empty match only where no match has just
  // ended. InvalidArgument if the engine's limits (steps, memory) end the search; it never gives a
  // wrong answer.
  absl::Status FindAll(std::string_view text, std::vector<TextSpan>& matches) const;

 private:
  explicit Regex(std::shared_ptr<re_pattern_buffer> regex) : regex_(std::move(regex)) {}
  std::shared_ptr<re_pattern_buffer> regex_;
};

}  // namespace ovq::model
