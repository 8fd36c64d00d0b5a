#include "model/tokenizers/post_processor.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/text.h"

namespace ovq::model {
namespace {

using Ids = std::vector<int32_t>;

// Looks up the ids of a name in special_tokens: {"<s>": {"ids": [1]}}.
Ids SpecialIds(JsonFields& fields, const std::string& name, int64_t vocab_size) {
  JsonFields known = fields.Child("special_tokens");
  if (fields.status().ok() && !known.Has(name)) {
    fields.Fail("special_tokens",
                absl::StrCat("has no ", Quoted(name), ", which the template names"));
  }
  if (!fields.status().ok()) return {};
  JsonFields token = known.Child(name);
  const std::vector<int64_t> ids = token.Ints("ids", 0, vocab_size - 1);
  if (!token.status().ok()) fields.Fail("special_tokens", std::string(token.status().message()));
  return Ids(ids.begin(), ids.end());
}

// The ids of {"SpecialToken": {"id": name}}, an entry of the list `key`.
Ids ReadSpecial(JsonFields& fields, const char* key, JsonFields& item, int64_t vocab_size) {
  JsonFields token = item.Child("SpecialToken");
  const std::string name = token.String("id");
  if (!token.status().ok()) fields.Fail(key, std::string(token.status().message()));
  return SpecialIds(fields, name, vocab_size);
}

// Reads "single", a list of special tokens and {"Sequence": {"id": "A"}}. "pair", for two texts, is
// only checked.
void ReadTemplate(JsonFields& fields, int64_t vocab_size, PostProcessor& result) {
  if (fields.Has("pair")) {
    for (JsonFields& item : fields.Children("pair")) {
      if (item.Has("SpecialToken")) ReadSpecial(fields, "pair", item, vocab_size);
    }
  }
  bool past_text = false;
  for (JsonFields& item : fields.Children("single")) {
    if (item.Has("SpecialToken")) {
      const Ids ids = ReadSpecial(fields, "single", item, vocab_size);
      Ids& side = past_text ? result.after : result.before;
      side.insert(side.end(), ids.begin(), ids.end());
      continue;
    }
    JsonFields sequence = item.Child("Sequence");
    const std::string name = sequence.status().ok() ? sequence.String("id") : "";
    if (name != "A" || past_text) {
      fields.Fail("single", "expected special tokens and one Sequence, with the id A");
    }
    past_text = true;
  }
  if (!past_text) fields.Fail("single", "expected one Sequence with the id A");
}

// The id of a pair such as ["<s>", 0] of Bert and Roberta.
int32_t PairId(JsonFields& fields, std::string_view key, int64_t vocab_size) {
  const nlohmann::json* pair = fields.Find(key);
  const bool fits = pair != nullptr && pair->is_array() && pair->size() == 2 &&
                    (*pair)[0].is_string() && (*pair)[1].is_number_integer() &&
                    (*pair)[1].get<int64_t>() >= 0 && (*pair)[1].get<int64_t>() < vocab_size;
  if (fits) return (*pair)[1].get<int32_t>();
  fields.Fail(key, absl::StrCat("expected a token and its id, below ", vocab_size));
  return 0;
}

}  // namespace

absl::StatusOr<PostProcessor> PostProcessor::Read(JsonFields& file, std::string_view key,
                                                  int64_t vocab_size) {
  static constexpr std::string_view kTypes[] = {"Sequence", "ByteLevel", "TemplateProcessing",
                                                "RobertaProcessing", "BertProcessing"};
  PostProcessor result;
  const auto read = [&](size_t type, JsonFields& fields, bool) {
    PostProcessor added;  // empty, as ByteLevel changes offsets alone
    if (kTypes[type] == "TemplateProcessing") {
      ReadTemplate(fields, vocab_size, added);
    } else if (kTypes[type] != "ByteLevel") {
      added.before = {PairId(fields, "cls", vocab_size)};
      added.after = {PairId(fields, "sep", vocab_size)};
    }
    result.before.insert(result.before.begin(), added.before.begin(), added.before.end());
    result.after.insert(result.after.end(), added.after.begin(), added.after.end());
    return absl::OkStatus();
  };
  RETURN_IF_ERROR(ReadStages(file, key, "processors", kTypes, read));
  return result;
}

}  // namespace ovq::model
