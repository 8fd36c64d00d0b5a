#include "base/json.h"

#include <set>
#include <type_traits>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "base/text.h"

namespace ovq {
namespace {

constexpr int kMaxDepth = 32;
constexpr size_t kMostCompared = size_t{1} << 27;  // some 0.2 s

// Keeps where the first fault of a text is, and what it is.
template <class Json>
struct FaultFinder : nlohmann::json_sax<Json> {
  bool null() override { return true; }
  bool boolean(bool) override { return true; }
  bool number_integer(typename Json::number_integer_t) override { return true; }
  bool number_unsigned(typename Json::number_unsigned_t) override { return true; }
  bool number_float(typename Json::number_float_t, const std::string&) override { return true; }
  bool string(std::string&) override { return true; }
  bool binary(typename Json::binary_t&) override { return true; }
  bool start_object(size_t) override { return true; }
  bool key(std::string&) override { return true; }
  bool end_object() override { return true; }
  bool start_array(size_t) override { return true; }
  bool end_array() override { return true; }
  // The library's text is "[...] parse error at line 1, column 2: syntax error while parsing value
  // - unexpected end of input; last read: '...'; expected ...", and quotes the whole token. The
  // only other error is that of a number; it has no place and quotes it likewise.
  bool parse_error(size_t, const std::string& token,
                   const nlohmann::json::exception& error) override {
    absl::string_view text = error.what();
    const size_t place = text.find("line ");
    if (place == absl::string_view::npos) {
      fault = "a number is beyond the range of doubles";
    } else {
      text.remove_prefix(place);
      fault = absl::StrReplaceAll(text, {{absl::StrCat("; last read: '", token, "'"), ""}});
    }
    return false;
  }

  std::string fault;
};

// kind: "object" or "list"; is_kind: what the whole text must be.
template <class Json>
absl::StatusOr<Json> Parse(std::string_view text, const std::string& what,
                           bool (Json::*is_kind)() const noexcept, const char* kind) {
  using Event = typename Json::parse_event_t;
  constexpr bool is_ordered = std::is_same_v<Json, nlohmann::ordered_json>;
  std::vector<std::set<std::string>> keys_at(kMaxDepth + 2);  // of the object open at each depth
  std::string fault;
  size_t compared = 0;  // keys that an ordered object compares with its others
  const auto callback = [&](int depth, Event event, Json& parsed) {
    if (depth > kMaxDepth) {
      fault = absl::StrCat("nested more than ", kMaxDepth, " levels deep");
      return false;
    }
    if (event == Event::object_start) keys_at[depth + 1].clear();
    if (event == Event::key) {
      const std::string& key = parsed.template get_ref<const std::string&>();
      if (!keys_at[depth].insert(key).second) fault = absl::StrCat("duplicate key ", Quoted(key));
      compared += keys_at[depth].size();
      if (is_ordered && compared > kMostCompared) fault = "too many keys in its objects";
    }
    return fault.empty();
  };
  Json json = Json::parse(text.begin(), text.end(), callback, /*allow_exceptions=*/false);
  if (!fault.empty()) return absl::DataLossError(absl::StrCat(what, ": ", fault));
  if (json.is_discarded()) {
    FaultFinder<Json> finder;
    Json::sax_parse(text.begin(), text.end(), &finder);
    return absl::DataLossError(absl::StrCat(what, ": not valid JSON: ", finder.fault));
  }
  if (!(json.*is_kind)()) return absl::DataLossError(absl::StrCat(what, ": not a JSON ", kind));
  return json;
}

}  // namespace

absl::StatusOr<nlohmann::json> ParseJsonObject(std::string_view text, const std::string& what) {
  return Parse(text, what, &nlohmann::json::is_object, "object");
}

absl::StatusOr<nlohmann::ordered_json> ParseOrderedObject(std::string_view text,
                                                          const std::string& what) {
  return Parse(text, what, &nlohmann::ordered_json::is_object, "object");
}

absl::StatusOr<nlohmann::ordered_json> ParseJsonList(std::string_view text,
                                                     const std::string& what) {
  return Parse(text, what, &nlohmann::ordered_json::is_array, "list");
}

}  // namespace ovq
