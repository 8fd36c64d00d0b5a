#include "model/tokenizers/pre_tokenizer.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/text.h"
#include "model/tokenizers/byte_alphabet.h"
#include "model/tokenizers/chars.h"
#include "model/tokenizers/metaspace.h"

namespace ovq::model {
namespace {

using Stage = PreTokenizer::Stage;

// GPT-2's pattern: contractions; letters, numbers and others, each with an optional space before
// it; white space.
constexpr char kByteLevelPattern[] =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

Stage SplitBy(Splitter splitter) {
  return [splitter = std::move(splitter)](Words& words) {
    std::vector<TextSpan> pieces;
    pieces.reserve(words.spans.size());
    for (const TextSpan& span : words.spans) {
      RETURN_IF_ERROR(splitter.Split(words.text, span, pieces));
    }
    words.spans = std::move(pieces);
    return absl::OkStatus();
  };
}

// A stage that rewrites every word: `write(word, is_first, text)` appends the new word.
template <class Write>
Stage Rewrite(Write write) {
  return [write](Words& words) {
    std::string text;
    text.reserve(words.text.size() + words.spans.size());
    std::vector<TextSpan> spans;
    for (const TextSpan& span : words.spans) {
      const size_t begin = text.size();
      write(std::string_view(words.text).substr(span.begin, span.end - span.begin),
            words.at_start && span.begin == 0, text);
      if (text.size() > begin) spans.push_back({begin, text.size()});
    }
    words.at_start = words.at_start && !words.spans.empty() && words.spans[0].begin == 0;
    words.text = std::move(text);
    words.spans = std::move(spans);
    return absl::OkStatus();
  };
}

absl::Status AppendByteLevel(JsonFields& fields, bool keep_bytes, std::vector<Stage>& stages) {
  const bool add_prefix_space = fields.BoolOr("add_prefix_space", true);
  const bool use_regex = fields.BoolOr("use_regex", true);
  if (add_prefix_space) {
    stages.push_back(Rewrite([](std::string_view word, bool, std::string& text) {
      if (word.front() != ' ') text += ' ';
      text += word;
    }));
  }
  if (use_regex) {
    ASSIGN_OR_RETURN(Regex regex, Regex::Compile(kByteLevelPattern));
    stages.push_back(SplitBy({.matcher = MatchRegex(std::move(regex))}));
  }
  if (!keep_bytes) {
    stages.push_back(Rewrite([](std::string_view word, bool, std::string& text) {
      for (char byte : word) AppendByteChar(static_cast<uint8_t>(byte), text);
    }));
  }
  return absl::OkStatus();
}

void AppendMetaspace(JsonFields& fields, std::vector<Stage>& stages) {
  const Metaspace metaspace = Metaspace::Read(fields);
  stages.push_back(Rewrite([metaspace](std::string_view word, bool is_first, std::string& text) {
    const bool prepend = metaspace.scheme == PrependScheme::kAlways ||
                         (metaspace.scheme == PrependScheme::kFirst && is_first);
    const bool there = word.front() == ' ' || word.starts_with(metaspace.replacement);
    if (prepend && !there) text += metaspace.replacement;
    for (char byte : word) {
      if (byte == ' ') {
        text += metaspace.replacement;
      } else {
        text += byte;
      }
    }
  }));
  if (metaspace.split) {
    stages.push_back(SplitBy({.matcher = MatchLiteral(metaspace.replacement),
                              .behavior = SplitBehavior::kMergedWithNext}));
  }
}

absl::StatusOr<Stage> ReadSplit(JsonFields& fields) {
  ASSIGN_OR_RETURN(Matcher matcher, ReadPattern(fields, "pattern"));
  ASSIGN_OR_RETURN(const SplitBehavior behavior, ReadSplitBehavior(fields));
  const bool invert = fields.BoolOr("invert", false);
  return SplitBy({std::move(matcher), behavior, invert});
}

absl::StatusOr<Stage> ReadPunctuation(JsonFields& fields) {
  SplitBehavior behavior = SplitBehavior::kIsolated;
  if (fields.Has("behavior")) {
    ASSIGN_OR_RETURN(behavior, ReadSplitBehavior(fields));
  }
  return SplitBy({.matcher = MatchChars(IsPunctuation), .behavior = behavior});
}

Stage ReadDelimiter(JsonFields& fields) {
  std::string delimiter = fields.String("delimiter");
  if (fields.status().ok() && CountChars(delimiter) != 1) {
    fields.Fail("delimiter", absl::StrCat("expected one character, got ", Quoted(delimiter)));
  }
  return SplitBy(
      {.matcher = MatchLiteral(std::move(delimiter)), .behavior = SplitBehavior::kRemoved});
}

Stage ReadFixedLength(JsonFields& fields) {
  const int64_t length = fields.IntOr("length", 5, 1, INT32_MAX);
  return SplitBy({.matcher = [length](std::string_view text, std::vector<TextSpan>& matches) {
    for (size_t at = 0; at < text.size();) {
      const size_t begin = at;
      for (int64_t i = 0; i < length && at < text.size(); ++i) NextChar(text, at);
      matches.push_back({begin, at});
    }
    return absl::OkStatus();
  }});
}

// The library splits by \w+|[^\w\s]+ with Rust's regular expressions here. Oniguruma's \w is
// another one: it has superscripts, and no joiners.
Stage SplitOffWords() {
  const auto match = [](std::string_view text, std::vector<TextSpan>& matches) {
    bool continues = false, was_word = false;
    for (size_t at = 0; at < text.size();) {
      const size_t begin = at;
      const char32_t c = NextChar(text, at);
      const bool is_blank = IsWhitespace(c), is_word = IsWordChar(c);
      if (continues && !is_blank && is_word == was_word) {
        matches.back().end = at;
      } else if (!is_blank) {
        matches.push_back({begin, at});
      }
      continues = !is_blank;
      was_word = is_word;
    }
    return absl::OkStatus();
  };
  return SplitBy({match, SplitBehavior::kRemoved, /*invert=*/true});
}

Stage SplitOffWhitespace() {
  return SplitBy({.matcher = MatchChars(IsWhitespace), .behavior = SplitBehavior::kRemoved});
}

Stage ReadDigits(JsonFields& fields) {
  const bool alone = fields.BoolOr("individual_digits", false);
  return SplitBy({.matcher = MatchChars(IsNumber),
                  .behavior = alone ? SplitBehavior::kIsolated : SplitBehavior::kContiguous});
}

absl::Status AppendStages(std::string_view type, JsonFields& fields, bool keep_bytes,
                          std::vector<Stage>& stages) {
  if (type == "ByteLevel") return AppendByteLevel(fields, keep_bytes, stages);
  if (type == "Split") {
    ASSIGN_OR_RETURN(stages.emplace_back(), ReadSplit(fields));
  }
  if (type == "Punctuation") {
    ASSIGN_OR_RETURN(stages.emplace_back(), ReadPunctuation(fields));
  }
  if (type == "Whitespace") stages.push_back(SplitOffWords());
  if (type == "Metaspace") AppendMetaspace(fields, stages);
  if (type == "FixedLength") stages.push_back(ReadFixedLength(fields));
  if (type == "CharDelimiterSplit") stages.push_back(ReadDelimiter(fields));
  if (type == "Digits") stages.push_back(ReadDigits(fields));
  if (type == "WhitespaceSplit" || type == "BertPreTokenizer") {
    stages.push_back(SplitOffWhitespace());
  }
  if (type == "BertPreTokenizer") {
    stages.push_back(SplitBy({.matcher = MatchChars(IsPunctuation)}));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<PreTokenizer> PreTokenizer::Read(JsonFields& file, std::string_view key,
                                                bool keep_bytes) {
  static constexpr std::string_view kTypes[] = {
      "Sequence",          "ByteLevel",  "Split",           "Digits",           "Punctuation",
      "Metaspace",         "Whitespace", "WhitespaceSplit", "BertPreTokenizer", "FixedLength",
      "CharDelimiterSplit"};
  PreTokenizer result;
  const auto read = [&](size_t type, JsonFields& fields, bool is_last) {
    result.gives_bytes_ = keep_bytes && is_last && kTypes[type] == "ByteLevel";
    return AppendStages(kTypes[type], fields, result.gives_bytes_, result.stages_);
  };
  RETURN_IF_ERROR(ReadStages(file, key, "pretokenizers", kTypes, read));
  return result;
}

absl::Status PreTokenizer::Apply(Words& words) const {
  const size_t most = MostBytes(words.text.size());
  for (const Stage& stage : stages_) {
    RETURN_IF_ERROR(stage(words));
    RETURN_IF_ERROR(CheckGrowth(words.text.size(), most));
  }
  return absl::OkStatus();
}

}  // namespace ovq::model
