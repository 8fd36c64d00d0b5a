// The fields of a request's JSON object: each is read by its name and type, and what nobody has
// asked for is an error at the end, so no field is ever ignored in silence.
#pragma once

#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"

namespace ovq {

// The first fault counts. A field that is null is absent.
class BodyFields {
 public:
  // prefix: begins the names of the fields in messages. The object outlives it.
  explicit BodyFields(const nlohmann::json& object, std::string prefix = "");

  const nlohmann::json* Any(const char* name);  // null if absent
  std::optional<std::string> Text(const char* name);
  std::optional<bool> Bool(const char* name);
  std::optional<float> Number(const char* name);
  // Within the type, whatever is beyond its range in meaning.
  std::optional<uint32_t> Count(const char* name);
  std::optional<int64_t> Integer(const char* name);  // 64 bits
  std::vector<uint32_t> Ids(const char* name);       // a list of token ids
  // Has no meaning here, or in this server: read whatever it is.
  void Skip(const char* name) { (void)Any(name); }
  // Not served: whatever is not absent, nor accepted, is an error that names it.
  void Refuse(const char* name, const char* expected = "none",
              const std::function<bool(const nlohmann::json&)>& accepted = nullptr);

  void Fail(absl::Status status) {
    if (status_.ok()) status_ = std::move(status);
  }
  void Expected(const std::string& name, const char* expected, const nlohmann::json& got);
  std::string Path(const std::string& name) const { return prefix_ + name; }
  bool ok() const { return status_.ok(); }
  // The first fault; of a field that nobody has read, if there is no other.
  absl::Status Finish();

 private:
  const nlohmann::json& object_;
  const std::string prefix_;
  std::set<std::string> read_;
  absl::Status status_;
};

// What there is in place of what was expected, in a few words.
std::string Shown(const nlohmann::json& json);

}  // namespace ovq
