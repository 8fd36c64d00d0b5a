#include "base/json.h"

#include <set>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/text.h"

namespace ovq {
namespace {

constexpr int kMaxDepth = 32;

template <class Json>
absl::StatusOr<Json> Parse(std::string_view text, const std::string& what) {
  using Event = typename Json::parse_event_t;
  std::vector<std::set<std::string>> keys_at(kMaxDepth + 2);  // of the object open at each depth
  std::string fault;
  const auto callback = [&](int depth, Event event, Json& parsed) {
    if (depth > kMaxDepth) {
      fault = absl::StrCat("nested more than ", kMaxDepth, " levels deep");
      return false;
    }
    if (event == Event::object_start) keys_at[depth + 1].clear();
    if (event == Event::key) {
      const std::string& key = parsed.template get_ref<const std::string&>();
      if (!keys_at[depth].insert(key).second) fault = absl::StrCat("duplicate key ", Quoted(key));
    }
    return true;
  };
  Json json = Json::parse(text.begin(), text.end(), callback, /*allow_exceptions=*/false);
  if (!fault.empty()) return absl::DataLossError(absl::StrCat(what, ": ", fault));
  if (json.is_discarded()) return absl::DataLossError(absl::StrCat(what, ": not valid JSON"));
  return json;
}

}  // namespace

absl::StatusOr<nlohmann::json> ParseJsonObject(std::string_view text, const std::string& what) {
  absl::StatusOr<nlohmann::json> json = Parse<nlohmann::json>(text, what);
  if (json.ok() && !json->is_object()) {
    return absl::DataLossError(absl::StrCat(what, ": not a JSON object"));
  }
  return json;
}

absl::StatusOr<nlohmann::ordered_json> ParseJsonList(std::string_view text,
                                                     const std::string& what) {
  absl::StatusOr<nlohmann::ordered_json> json = Parse<nlohmann::ordered_json>(text, what);
  if (json.ok() && !json->is_array()) {
    return absl::DataLossError(absl::StrCat(what, ": not a JSON list"));
  }
  return json;
}

}  // namespace ovq
