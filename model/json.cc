#include "model/json.h"

#include <filesystem>
#include <fstream>
#include <set>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"

namespace ovq {
namespace {

constexpr int kMaxDepth = 32;

}  // namespace

absl::StatusOr<std::string> ReadFile(const std::string& path, size_t max_bytes) {
  std::error_code error;
  const std::filesystem::file_status status = std::filesystem::status(path, error);
  if (status.type() == std::filesystem::file_type::not_found) {
    return absl::NotFoundError(absl::StrCat(path, ": no such file"));
  }
  if (error || status.type() != std::filesystem::file_type::regular) {
    return absl::DataLossError(absl::StrCat(path, ": not a regular file"));
  }
  const uintmax_t bytes = std::filesystem::file_size(path, error);
  if (error || bytes > max_bytes) {
    return absl::DataLossError(absl::StrCat(path, ": larger than ", max_bytes, " bytes"));
  }
  std::string text(bytes, '\0');
  std::ifstream file(path, std::ios::binary);
  if (!file.read(text.data(), static_cast<std::streamsize>(bytes))) {
    return absl::DataLossError(absl::StrCat(path, ": cannot be read"));
  }
  return text;
}

absl::StatusOr<nlohmann::json> ParseJsonObject(std::string_view text, const std::string& what) {
  using Event = nlohmann::json::parse_event_t;
  std::vector<std::set<std::string>> keys_at(kMaxDepth + 2);  // of the open object at each depth
  std::string fault;
  const auto callback = [&](int depth, Event event, nlohmann::json& parsed) {
    if (depth > kMaxDepth) {
      fault = absl::StrCat("nested more than ", kMaxDepth, " levels deep");
      return false;
    }
    if (event == Event::object_start) keys_at[depth + 1].clear();
    if (event == Event::key) {
      const std::string& key = parsed.get_ref<const std::string&>();
      if (!keys_at[depth].insert(key).second) fault = absl::StrCat("duplicate key ", Quoted(key));
    }
    return true;
  };
  nlohmann::json json =
      nlohmann::json::parse(text.begin(), text.end(), callback, /*allow_exceptions=*/false);
  if (!fault.empty()) return absl::DataLossError(absl::StrCat(what, ": ", fault));
  if (json.is_discarded()) return absl::DataLossError(absl::StrCat(what, ": not valid JSON"));
  if (!json.is_object()) return absl::DataLossError(absl::StrCat(what, ": not a JSON object"));
  return json;
}

std::string Quoted(std::string_view name) {
  constexpr size_t kMaxChars = 120;
  std::string text = absl::CEscape(std::string(name.substr(0, kMaxChars)));
  if (name.size() > kMaxChars) text += "...";
  return absl::StrCat("'", text, "'");
}

}  // namespace ovq
