#include "model/tokenizers/normalizer.h"

#include <algorithm>
#include <utility>

#include "base/status_macros.h"
#include "model/tokenizers/byte_alphabet.h"
#include "model/tokenizers/chars.h"
#include "model/tokenizers/normal_form.h"
#include "model/tokenizers/split.h"

namespace ovq::model {
namespace {

using TextStage = Normalizer::Stage;

// A stage from a function that cannot fail.
template <class Change>
TextStage Total(Change change) {
  return [change](std::string& text, size_t) {
    change(text);
    return absl::OkStatus();
  };
}

// A stage that replaces every character by what `append(c, result)` appends.
template <class Append>
TextStage EachChar(Append append) {
  return Total([append](std::string& text) {
    std::string result;
    result.reserve(text.size());
    for (size_t at = 0; at < text.size();) append(NextChar(text, at), result);
    text = std::move(result);
  });
}

template <class Removed>
TextStage Remove(Removed removed) {
  return EachChar([removed](char32_t c, std::string& result) {
    if (!removed(c)) AppendChar(c, result);
  });
}

TextStage Form(NormalForm form) {
  return Total([form](std::string& text) { Normalize(form, text); });
}

// The library's character list for sentencepiece's rule nmt.
TextStage Nmt() {
  return EachChar([](char32_t c, std::string& result) {
    const bool removed = (c >= 0x1 && c <= 0x8) || c == 0xb || (c >= 0xe && c <= 0x1f) ||
                         c == 0x7f || c == 0x8f || c == 0x9f;
    if (removed) return;
    const bool blank = c == 0x9 || c == 0xa || c == 0xc || c == 0xd || c == 0x1680 ||
                       (c >= 0x200b && c <= 0x200f) || c == 0x2028 || c == 0x2029 || c == 0x2581 ||
                       c == 0xfeff || c == 0xfffd;
    AppendChar(blank ? U' ' : c, result);
  });
}

bool IsChinese(char32_t c) {
  return (c >= 0x4e00 && c <= 0x9fff) || (c >= 0x3400 && c <= 0x4dbf) ||
         (c >= 0x20000 && c <= 0x2a6df) || (c >= 0x2a700 && c <= 0x2b73f) ||
         (c >= 0x2b740 && c <= 0x2b81f) || (c >= 0x2b920 && c <= 0x2ceaf) ||
         (c >= 0xf900 && c <= 0xfaff) || (c >= 0x2f800 && c <= 0x2fa1f);
}

TextStage CleanForBert() {
  return EachChar([](char32_t c, std::string& result) {
    // Controls vanish before white space becomes blanks, so that only these three of them do.
    const bool stays = c == U'\t' || c == U'\n' || c == U'\r';
    if (c == 0 || c == 0xfffd || (IsOther(c) && !stays)) return;
    AppendChar(IsWhitespace(c) ? U' ' : c, result);
  });
}

void AppendBert(JsonFields& fields, std::vector<TextStage>& stages) {
  const bool lowercase = fields.BoolOr("lowercase", true);
  if (fields.BoolOr("clean_text", true)) stages.push_back(CleanForBert());
  if (fields.BoolOr("handle_chinese_chars", true)) {
    stages.push_back(EachChar([](char32_t c, std::string& result) {
      if (IsChinese(c)) result += ' ';
      AppendChar(c, result);
      if (IsChinese(c)) result += ' ';
    }));
  }
  if (fields.BoolOr("strip_accents", lowercase)) {
    stages.push_back(Form(NormalForm::kNfd));
    stages.push_back(Remove(IsNonspacingMark));
  }
  if (lowercase) stages.push_back(EachChar(AppendLower));
}

absl::StatusOr<TextStage> ReadReplace(JsonFields& fields) {
  ASSIGN_OR_RETURN(Matcher matcher, ReadPattern(fields, "pattern"));
  return [matcher = std::move(matcher), content = fields.String("content")](
             std::string& text, size_t most) { return ReplaceAll(matcher, content, most, text); };
}

TextStage ReadStrip(JsonFields& fields) {
  const bool left = fields.BoolOr("strip_left", true);
  const bool right = fields.BoolOr("strip_right", true);
  return Total(
      [left, right](std::string& text) { text = std::string(StripWhitespace(text, left, right)); });
}

TextStage ReadPrepend(JsonFields& fields) {
  return Total([prefix = fields.String("prepend")](std::string& text) {
    if (!text.empty()) text.insert(0, prefix);
  });
}

}  // namespace

absl::StatusOr<Normalizer> Normalizer::Read(JsonFields& file, std::string_view key) {
  static constexpr std::string_view kTypes[] = {
      "Sequence", "NFC",          "NFD",     "NFKC",      "NFKD", "Lowercase",     "Strip",
      "Replace",  "StripAccents", "Prepend", "ByteLevel", "Nmt",  "BertNormalizer"};
  Normalizer result;
  const auto read = [&stages = result.stages_](size_t i, JsonFields& fields, bool) -> absl::Status {
    const std::string_view type = kTypes[i];
    if (type == "NFC") stages.push_back(Form(NormalForm::kNfc));
    if (type == "NFD") stages.push_back(Form(NormalForm::kNfd));
    if (type == "NFKC") stages.push_back(Form(NormalForm::kNfkc));
    if (type == "NFKD") stages.push_back(Form(NormalForm::kNfkd));
    if (type == "Lowercase") stages.push_back(EachChar(AppendLower));
    if (type == "StripAccents") stages.push_back(Remove(IsMark));
    if (type == "Nmt") stages.push_back(Nmt());
    if (type == "ByteLevel") {
      stages.push_back(Total([](std::string& text) { text = BytesToChars(text); }));
    }
    if (type == "Strip") stages.push_back(ReadStrip(fields));
    if (type == "Prepend") stages.push_back(ReadPrepend(fields));
    if (type == "Replace") {
      ASSIGN_OR_RETURN(stages.emplace_back(), ReadReplace(fields));
    }
    if (type == "BertNormalizer") AppendBert(fields, stages);
    return absl::OkStatus();
  };
  RETURN_IF_ERROR(ReadStages(file, key, "normalizers", kTypes, read));
  return result;
}

absl::Status Normalizer::Apply(std::string& text) const {
  const size_t most = MostBytes(text.size());
  for (const TextStage& stage : stages_) {
    RETURN_IF_ERROR(stage(text, most));
    RETURN_IF_ERROR(CheckGrowth(text.size(), most));
  }
  return absl::OkStatus();
}

}  // namespace ovq::model
