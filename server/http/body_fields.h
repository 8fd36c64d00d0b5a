// Reads the fields of a request's JSON object by name and type. Fields that were not read are an
// error at the end, so no field is silently ignored.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "server/http/json.h"

namespace ovq::server {

// Keeps the first error. A field that is null counts as absent.
class BodyFields {
 public:
  // prefix: stands before the names of fields in error texts. The object outlives it.
  explicit BodyFields(const Json& object, std::string prefix = "");

  const Json* Any(const char* name);  // null if absent
  std::optional<std::string> Text(const char* name);
  std::optional<bool> Bool(const char* name);
  std::optional<float> Number(const char* name);
  // Checks the range of the type only, not of the meaning.
  std::optional<uint32_t> Count(const char* name);
  std::optional<int64_t> Integer(const char* name);  // 64 bits
  std::vector<uint32_t> Ids(const char* name);       // a list of token ids
  // The fields of an object, whose Finish its reader passes to Fail. None if the field is absent or
  // says nothing (IsDefault), or is no object, which is an error.
  std::optional<BodyFields> Object(const char* name, const char* expected = "an object");
  // Accepts any value of a field that has no meaning in this server.
  void Skip(const char* name) { (void)Any(name); }
  // A field that is not served: any value that is neither IsDefault nor accepted is an error that
  // names the field.
  void Refuse(const char* name, const char* expected = "none",
              const std::vector<Json>& accepted = {});

  void Fail(absl::Status status) {
    if (status_.ok()) status_ = std::move(status);
  }
  void Expected(const std::string& name, const char* expected, const Json& got);
  std::string Path(const std::string& name) const { return prefix_ + name; }
  bool ok() const { return status_.ok(); }
  // The first error, or else one for a field that was not read.
  absl::Status Finish();

 private:
  const Json& object_;
  const std::string prefix_;
  std::set<std::string> read_;
  absl::Status status_;
};

// Whether the value says nothing, as clients send fields that were not set: null, "", [], {} and
// objects of such values.
bool IsDefault(const Json& json);

// The value in a few words, for an error text.
std::string Shown(const Json& json);

}  // namespace ovq::server
