#include "model/json_attrs.h"

#include <algorithm>
#include <iterator>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"

namespace ovq::model {
namespace {

using Json = nlohmann::json;

constexpr std::string_view kBookkeeping[] = {
    "_name_or_path",           "architectures",        "auto_map",
    "initializer_range",       "pad_token_id",         "attention_dropout",
    "max_position_embeddings", "transformers_version", "use_cache"};

bool IsBeyond64Bits(const Json& json) {
  return json.is_number_unsigned() &&
         json.get<uint64_t>() > static_cast<uint64_t>(std::numeric_limits<int64_t>::max());
}

// The numbers of an entry of a mixed list: NaN for anything else.
std::vector<double> ToNumbers(const Json& json) {
  constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
  if (!json.is_array()) return {json.is_number() ? json.get<double>() : kNan};
  std::vector<double> row;
  for (const Json& entry : json) row.push_back(entry.is_number() ? entry.get<double>() : kNan);
  return row;
}

kernels::Attrs::Value ToList(const Json& list) {
  std::vector<int64_t> integers;
  std::vector<double> numbers;
  std::vector<std::string> strings;
  if (std::ranges::any_of(list, &Json::is_array)) {
    std::vector<std::vector<double>> rows;
    std::ranges::transform(list, std::back_inserter(rows), ToNumbers);
    return rows;
  }
  for (const Json& entry : list) {
    if (entry.is_string()) strings.push_back(entry.get_ref<const std::string&>());
    if (entry.is_number_integer() && !IsBeyond64Bits(entry)) {
      integers.push_back(entry.get<int64_t>());
    }
    if (entry.is_number()) numbers.push_back(entry.get<double>());
    if (entry.is_null()) numbers.push_back(std::numeric_limits<double>::quiet_NaN());
  }
  if (integers.size() == list.size()) return integers;
  if (numbers.size() == list.size()) return numbers;
  if (strings.size() == list.size()) return strings;
  return std::monostate();
}

std::optional<kernels::Attrs::Value> ToValue(const Json& json) {
  if (json.is_boolean()) return json.get<bool>();
  if (json.is_string()) return json.get_ref<const std::string&>();
  if (json.is_number_float() || IsBeyond64Bits(json)) return json.get<double>();
  if (json.is_number_integer()) return json.get<int64_t>();
  if (json.is_array()) return ToList(json);
  return std::nullopt;
}

}  // namespace

std::span<const std::string_view> Bookkeeping() { return kBookkeeping; }

void FillAttrs(const Json& object, kernels::Attrs& attrs, std::string_view said_in) {
  for (const auto& [key, value] : object.items()) {
    if (std::ranges::find(kBookkeeping, key) != std::end(kBookkeeping)) continue;
    std::optional<kernels::Attrs::Value> attr = ToValue(value);
    if (!attr) continue;
    attrs.Set(key, *std::move(attr),
              said_in.empty() ? "" : absl::StrCat(std::string(said_in), key));
  }
}

std::vector<int32_t> TokenIds(const Json& object, const char* field, int64_t vocab_size,
                              kernels::AttrReader& reader) {
  std::vector<int32_t> ids;
  const auto found = object.find(field);
  if (found == object.end() || found->is_null()) return ids;
  const Json list = found->is_array() ? *found : Json::array({*found});
  for (const Json& id : list) {
    if (id.is_number_unsigned() && id.get<uint64_t>() < static_cast<uint64_t>(vocab_size)) {
      ids.push_back(static_cast<int32_t>(id.get<uint64_t>()));
    } else {
      reader.Fail(field, absl::StrCat("expected integers in [0, ", vocab_size - 1,
                                      "] or a list of them, got ", id.dump()));
    }
  }
  return ids;
}

}  // namespace ovq::model
