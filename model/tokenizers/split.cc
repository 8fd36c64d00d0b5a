#include "model/tokenizers/split.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "model/tokenizers/chars.h"

namespace ovq::model {
namespace {

struct Part {
  TextSpan span;
  bool is_match;
};

// Matches and the gaps between them, as in the library's Pattern::find_matches.
std::vector<Part> Cover(size_t size, const std::vector<TextSpan>& matches, bool invert) {
  std::vector<Part> parts;
  parts.reserve(2 * matches.size() + 1);
  size_t done = 0;
  for (const TextSpan& match : matches) {
    if (match.begin > done) parts.push_back({{done, match.begin}, invert});
    parts.push_back({match, !invert});
    done = match.end;
  }
  if (done < size) parts.push_back({{done, size}, invert});
  return parts;
}

// Joins adjacent parts in place: a part joins the one before it if `joins(part, before)`.
template <class Joins>
void Join(std::vector<Part>& parts, Joins joins) {
  size_t n = 0;
  bool before = false;
  for (const Part& part : parts) {
    const bool joined = n > 0 && joins(part.is_match, before);
    before = part.is_match;
    if (joined) {
      TextSpan& last = parts[n - 1].span;
      last = {std::min(last.begin, part.span.begin), std::max(last.end, part.span.end)};
    } else {
      parts[n++] = part;
    }
  }
  parts.resize(n);
}

void Apply(SplitBehavior behavior, std::vector<Part>& parts) {
  const auto match_after_gap = [](bool is_match, bool before) { return is_match && !before; };
  switch (behavior) {
    case SplitBehavior::kIsolated:
      return;
    case SplitBehavior::kRemoved:
      std::erase_if(parts, [](const Part& part) { return part.is_match; });
      return;
    case SplitBehavior::kContiguous:
      return Join(parts, [](bool is_match, bool before) { return is_match == before; });
    case SplitBehavior::kMergedWithPrevious:
      return Join(parts, match_after_gap);
    case SplitBehavior::kMergedWithNext:
      std::ranges::reverse(parts);
      Join(parts, match_after_gap);
      std::ranges::reverse(parts);
  }
}

}  // namespace

Matcher MatchChars(std::function<bool(char32_t)> is_match) {
  return [is_match = std::move(is_match)](std::string_view text, std::vector<TextSpan>& matches) {
    for (size_t at = 0; at < text.size();) {
      const size_t begin = at;
      if (is_match(NextChar(text, at))) matches.push_back({begin, at});
    }
    return absl::OkStatus();
  };
}

Matcher MatchLiteral(std::string literal) {
  return [literal = std::move(literal)](std::string_view text, std::vector<TextSpan>& matches) {
    if (literal.empty()) return absl::OkStatus();
    for (size_t at = text.find(literal); at != std::string_view::npos;
         at = text.find(literal, at + literal.size())) {
      matches.push_back({at, at + literal.size()});
    }
    return absl::OkStatus();
  };
}

Matcher MatchRegex(Regex regex) {
  return [regex = std::move(regex)](std::string_view text, std::vector<TextSpan>& matches) {
    return regex.FindAll(text, matches);
  };
}

absl::StatusOr<Matcher> ReadPattern(JsonFields& fields, std::string_view key) {
  JsonFields pattern = fields.Child(key);
  if (!fields.status().ok()) return fields.status();
  if (pattern.Has("String")) {
    std::string literal = pattern.String("String");
    if (!pattern.status().ok()) return pattern.status();
    return MatchLiteral(std::move(literal));
  }
  if (!pattern.Has("Regex")) {
    fields.Fail(key, "expected {\"String\": text} or {\"Regex\": pattern}");
    return fields.status();
  }
  absl::StatusOr<Regex> regex = Regex::Compile(pattern.String("Regex"));
  if (pattern.status().ok() && !regex.ok())
    pattern.Fail("Regex", std::string(regex.status().message()));
  if (!pattern.status().ok()) return pattern.status();
  return MatchRegex(*std::move(regex));
}

size_t MostBytes(size_t bytes) {
  constexpr size_t kLeast = size_t{1} << 20, kTimes = 64;
  return std::max(kLeast, kTimes * bytes);
}

absl::Status CheckGrowth(size_t bytes, size_t most) {
  if (bytes <= most) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("the stages of the tokenizer make more than ", most, " bytes of a text"));
}

absl::Status ReplaceAll(const Matcher& matcher, std::string_view content, size_t most,
                        std::string& text) {
  std::vector<TextSpan> matches;
  if (absl::Status status = matcher(text, matches); !status.ok() || matches.empty()) return status;
  std::string result;
  size_t done = 0;
  for (const TextSpan& match : matches) {
    result.append(text, done, match.begin - done).append(content);
    done = match.end;
    RETURN_IF_ERROR(CheckGrowth(result.size(), most));
  }
  result.append(text, done);
  RETURN_IF_ERROR(CheckGrowth(result.size(), most));
  text = std::move(result);
  return absl::OkStatus();
}

absl::StatusOr<SplitBehavior> ReadSplitBehavior(JsonFields& fields) {
  constexpr std::string_view kNames[] = {"Isolated", "Removed", "Contiguous", "MergedWithPrevious",
                                         "MergedWithNext"};
  const size_t choice = fields.Choice("behavior", kNames);
  if (!fields.status().ok()) return fields.status();
  return static_cast<SplitBehavior>(choice);
}

absl::Status Splitter::Split(std::string_view text, TextSpan span,
                             std::vector<TextSpan>& pieces) const {
  std::vector<TextSpan> matches;
  const size_t size = span.end - span.begin;
  RETURN_IF_ERROR(matcher(text.substr(span.begin, size), matches));
  std::vector<Part> parts = Cover(size, matches, invert);
  Apply(behavior, parts);
  for (const Part& part : parts) {
    if (part.span.begin == part.span.end) continue;
    pieces.push_back({span.begin + part.span.begin, span.begin + part.span.end});
  }
  return absl::OkStatus();
}

}  // namespace ovq::model
