// Cutting a text at the matches of a pattern, as `Split` of tokenizer.json says it.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "model/tokenizers/json_fields.h"
#include "model/tokenizers/regex.h"

namespace ovq {

// Appends what a pattern matches in valid UTF-8, in order, not overlapping.
using Matcher = std::function<absl::Status(std::string_view text, std::vector<TextSpan>& matches)>;

// A character at a time.
Matcher MatchChars(std::function<bool(char32_t)> is_match);
Matcher MatchLiteral(std::string literal);  // an empty one matches nothing
Matcher MatchRegex(Regex regex);
// {"String": literal} or {"Regex": pattern} in the field `key`.
absl::StatusOr<Matcher> ReadPattern(JsonFields& fields, std::string_view key);

// `text` with `content` in place of every match.
absl::Status ReplaceAll(const Matcher& matcher, std::string_view content, std::string& text);

// What becomes of a match: a piece of its own, nothing, one with the matches (and the gaps) beside
// it, one with the gap before or behind it unless that is a match too.
enum class SplitBehavior { kIsolated, kRemoved, kContiguous, kMergedWithPrevious, kMergedWithNext };
absl::StatusOr<SplitBehavior> ReadSplitBehavior(JsonFields& fields);  // the field "behavior"

// Matches and gaps together cover the text; inverted, each counts as the other. Pieces that are
// empty are left out.
struct Splitter {
  Matcher matcher;
  SplitBehavior behavior = SplitBehavior::kIsolated;
  bool invert = false;

  // Appends the pieces of text[span], as spans of the text.
  absl::Status Split(std::string_view text, TextSpan span, std::vector<TextSpan>& pieces) const;
};

}  // namespace ovq
