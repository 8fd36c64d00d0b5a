// Typed values of one JSON object of config.json, without a JSON library. A key that nobody reads
// is an error, so that a misspelt field is never ignored.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace ovq {

class Attrs {
 public:
  using Value = std::variant<std::monostate /* null */, bool, int64_t, double, std::string,
                             std::vector<int64_t>, std::vector<std::string>>;

  explicit Attrs(std::string path = "") : path_(std::move(path)) {}  // "ovq." prefixes messages
  void Set(std::string key, Value value) { values_[std::move(key)] = std::move(value); }
  bool Has(std::string_view key) const;  // present and not null

  // InvalidArgument "ovq.chunk_size: expected an integer in [2, 65536], got ...".
  absl::StatusOr<int64_t> Int(std::string_view key, int64_t min, int64_t max) const;
  absl::StatusOr<int64_t> IntOr(std::string_view key, int64_t fallback, int64_t min,
                                int64_t max) const;
  absl::StatusOr<double> FloatOr(std::string_view key, double fallback, double min,
                                 double max) const;
  absl::StatusOr<bool> BoolOr(std::string_view key, bool fallback) const;
  absl::StatusOr<std::string> StringOr(std::string_view key, std::string fallback) const;
  absl::StatusOr<std::vector<std::string>> Strings(std::string_view key) const;
  // An integer gives a list of n equal entries; a list must have n entries.
  absl::StatusOr<std::vector<int64_t>> IntPerLayer(std::string_view key, int n, int64_t min,
                                                   int64_t max) const;

  void Ignore(std::string_view key) const { read_.insert(std::string(key)); }
  absl::Status CheckAllRead() const;  // names the first unread key

 private:
  const Value* Find(std::string_view key) const;
  std::string path_;
  std::map<std::string, Value, std::less<>> values_;
  mutable std::set<std::string, std::less<>> read_;
};

}  // namespace ovq
