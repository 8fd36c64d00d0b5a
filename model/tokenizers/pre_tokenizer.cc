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

namespace ovq {
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

// Rewrites every word: `write(word, is_first, text)` appends the new word.
template <class Write>
void Rewrite(Words& words, Write write) {
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
}

absl::StatusOr<std::vector<Stage>> ReadByteLevel(JsonFields& fields, bool keep_bytes) {
  const bool add_prefix_space = fields.BoolOr("add_prefix_space", true);
  const bool use_regex = fields.BoolOr("use_regex", true);
  std::vector<Stage> stages;
  if (add_prefix_space) {
    stages.push_back([](Words& words) {
      Rewrite(words, [](std::string_view word, bool, std::string& text) {
        if (word.front() != ' ') text += ' ';
        text += word;
      });
      return absl::OkStatus();
    });
  }
  if (use_regex) {
    ASSIGN_OR_RETURN(Regex regex, Regex::Compile(kByteLevelPattern));
    stages.push_back(SplitBy({.matcher = MatchRegex(std::move(regex))}));
  }
  if (!keep_bytes) {
    stages.push_back([](Words& words) {
      Rewrite(words, [](std::string_view word, bool, std::string& text) {
        for (char byte : word) AppendByteChar(static_cast<uint8_t>(byte), text);
      });
      return absl::OkStatus();
    });
  }
  return stages;
}

absl::StatusOr<std::vector<Stage>> ReadMetaspace(JsonFields& fields) {
  const Metaspace metaspace = Metaspace::Read(fields);
  std::vector<Stage> stages;
  stages.push_back([metaspace](Words& words) {
    Rewrite(words, [&metaspace](std::string_view word, bool is_first, std::string& text) {
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
    });
    return absl::OkStatus();
  });
  if (metaspace.split) {
    stages.push_back(SplitBy({.matcher = MatchLiteral(metaspace.replacement),
                              .behavior = SplitBehavior::kMergedWithNext}));
  }
  return stages;
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
    ASSIGN_OR_RETURN(const SplitBehavior given, ReadSplitBehavior(fields));
    behavior = given;
  }
  return SplitBy({.matcher = MatchChars(IsPunctuation), .behavior = behavior});
}

absl::StatusOr<Stage> ReadDelimiter(JsonFields& fields) {
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

absl::StatusOr<Stage> ReadWhitespace() {
  ASSIGN_OR_RETURN(Regex regex, Regex::Compile(R"(\w+|[^\w\s]+)"));
  return SplitBy({MatchRegex(std::move(regex)), SplitBehavior::kRemoved, /*invert=*/true});
}

Stage SplitOffWhitespace() {
  return SplitBy({.matcher = MatchChars(IsWhitespace), .behavior = SplitBehavior::kRemoved});
}

constexpr std::string_view kPreTokenizerTypes[] = {
    "Sequence",          "ByteLevel",  "Split",           "Digits",           "Punctuation",
    "Metaspace",         "Whitespace", "WhitespaceSplit", "BertPreTokenizer", "FixedLength",
    "CharDelimiterSplit"};

struct StageReader {
  bool keep_bytes;
  std::vector<Stage> stages = {};
  bool gives_bytes = false;  // the last stage so far is ByteLevel and kept the bytes

  absl::Status Read(JsonFields fields, bool is_last);
};

absl::StatusOr<std::vector<Stage>> One(absl::StatusOr<Stage> stage) {
  if (!stage.ok()) return stage.status();
  return std::vector<Stage>{*std::move(stage)};
}

absl::StatusOr<std::vector<Stage>> ReadOne(std::string_view type, JsonFields& fields,
                                           bool keep_bytes) {
  if (type == "ByteLevel") return ReadByteLevel(fields, keep_bytes);
  if (type == "Metaspace") return ReadMetaspace(fields);
  if (type == "Split") return One(ReadSplit(fields));
  if (type == "Punctuation") return One(ReadPunctuation(fields));
  if (type == "FixedLength") return One(ReadFixedLength(fields));
  if (type == "CharDelimiterSplit") return One(ReadDelimiter(fields));
  if (type == "Whitespace") return One(ReadWhitespace());
  if (type == "WhitespaceSplit") return One(SplitOffWhitespace());
  if (type == "BertPreTokenizer") {
    return std::vector<Stage>{SplitOffWhitespace(),
                              SplitBy({.matcher = MatchChars(IsPunctuation)})};
  }
  const bool alone = fields.BoolOr("individual_digits", false);  // field of Digits
  return One(SplitBy({.matcher = MatchChars(IsNumber),
                      .behavior = alone ? SplitBehavior::kIsolated : SplitBehavior::kContiguous}));
}

absl::Status StageReader::Read(JsonFields fields, bool is_last) {
  const std::string_view type = kPreTokenizerTypes[fields.Choice(
      "type", {std::begin(kPreTokenizerTypes), std::end(kPreTokenizerTypes)})];
  if (!fields.status().ok()) return fields.status();
  if (type == "Sequence") {
    const std::vector<JsonFields> children = fields.Children("pretokenizers");
    if (!fields.status().ok()) return fields.status();
    for (size_t i = 0; i < children.size(); ++i) {
      const bool last = is_last && i + 1 == children.size();
      RETURN_IF_ERROR(Read(children[i], last));
    }
    return absl::OkStatus();
  }
  const bool keeps = keep_bytes && is_last && type == "ByteLevel";
  ASSIGN_OR_RETURN(std::vector<Stage> read, ReadOne(type, fields, keeps));
  if (!fields.status().ok()) return fields.status();
  gives_bytes = keeps;
  stages.insert(stages.end(), read.begin(), read.end());
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<PreTokenizer> PreTokenizer::Read(JsonFields& file, std::string_view key,
                                                bool keep_bytes) {
  PreTokenizer result;
  if (!file.Has(key)) return result;
  StageReader reader{keep_bytes};
  const JsonFields fields = file.Child(key);
  if (!file.status().ok()) return file.status();
  RETURN_IF_ERROR(reader.Read(fields, /*is_last=*/true));
  result.stages_ = std::move(reader.stages);
  result.gives_bytes_ = reader.gives_bytes;
  return result;
}

absl::Status PreTokenizer::Apply(Words& words) const {
  for (const Stage& stage : stages_) {
    RETURN_IF_ERROR(stage(words));
  }
  return absl::OkStatus();
}

}  // namespace ovq
