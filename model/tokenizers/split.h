// Splitting of texts at the matches of a pattern, as `Split` of tokenizer.json defines it.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "model/tokenizers/json_fields.h"
#include "model/tokenizers/regex.h"

namespace ovq::model {

// Appends the matches of a pattern in valid UTF-8, in order, not overlapping.
using Matcher = std::function<absl::Status(std::string_view text, std::vector<TextSpan>& matches)>;

// Matches single characters.
Matcher MatchChars(std::function<bool(char32_t)> is_match);
Matcher MatchLiteral(std::string literal);  // an empty one matches nothing
Matcher MatchRegex(Regex regex);
// Reads {"String": literal} or {"Regex": pattern} from the field `key`.
absl::StatusOr<Matcher> ReadPattern(JsonFields& fields, std::string_view key);

// The most bytes that the stages of a file may make of a text of `bytes`, as each may double it: 64
// times as many, and no less than 1 MiB.
size_t MostBytes(size_t bytes);
// InvalidArgument if a text of `bytes` is longer than `most`.
absl::Status CheckGrowth(size_t bytes, size_t most);
// Replaces every match in `text` by `content`. InvalidArgument, and the text stays what it is, if
// it would be longer than `most` bytes.
absl::Status ReplaceAll(const Matcher& matcher, std::string_view content, size_t most,
                        std::string& text);

// Treatment of a match: kIsolated a piece of its own, kRemoved dropped, kContiguous joined with
// adjacent matches (and gaps likewise), kMergedWithPrevious and kMergedWithNext joined with the gap
// before or after it, unless that is a match too.
enum class SplitBehavior { kIsolated, kRemoved, kContiguous, kMergedWithPrevious, kMergedWithNext };
absl::StatusOr<SplitBehavior> ReadSplitBehavior(JsonFields& fields);  // the field "behavior"

// Matches and gaps together cover the text; `invert` swaps their roles. Empty pieces are left out.
struct Splitter {
  Matcher matcher;
  SplitBehavior behavior = SplitBehavior::kIsolated;
  bool invert = false;

  // Appends the pieces of text[span], as spans of the text.
  absl::Status Split(std::string_view text, TextSpan span, std::vector<TextSpan>& pieces) const;
};

}  // namespace ovq::model
