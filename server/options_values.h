// Setters for one option's text value each; a failure says what was expected and what came.
#pragma once

#include <array>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/values.h"
#include "server/options.h"

namespace ovq {

absl::Status SetInteger(std::string_view text, int64_t low, int64_t high, int64_t& out);
template <class T>
absl::Status SetInteger(std::string_view text, int64_t low, int64_t high, T& out) {
  int64_t value = 0;
  if (absl::Status status = SetInteger(text, low, high, value); !status.ok()) return status;
  out = static_cast<T>(value);
  return absl::OkStatus();
}
// "512,2048": whole numbers between commas, at least one.
template <class T>
absl::Status SetIntegers(std::string_view text, int64_t low, int64_t high, std::vector<T>& out) {
  out.clear();
  for (;;) {
    const size_t comma = text.find(',');
    absl::Status status = SetInteger(text.substr(0, comma), low, high, out.emplace_back());
    if (!status.ok() || comma == std::string_view::npos) return status;
    text.remove_prefix(comma + 1);
  }
}
// One of the names, whose places are the values of the enum T.
template <class T, size_t kCount>
absl::Status SetChoice(std::string_view text, const std::array<const char*, kCount>& names,
                       T& out) {
  for (size_t i = 0; i < kCount; ++i) {
    if (text != names[i]) continue;
    out = static_cast<T>(i);
    return absl::OkStatus();
  }
  return Expected(absl::StrCat("one of ", absl::StrJoin(names, ", ")), text);
}
// HOST:PORT with a port from 0 to 65535.
absl::Status SetAddress(std::string_view text, std::string& out);
// A path that is not empty.
absl::Status SetFile(std::string_view text, std::string& out);
absl::Status SetDType(std::string_view text, std::optional<DType>& out);
absl::Status SetDevice(std::string_view text, Device& out);
absl::Status SetDuration(std::string_view text, absl::Duration low, absl::Duration high,
                         absl::Duration& out);

// What the options that protect the server say together.
absl::Status CheckSecurityOptions(const Options& options);

}  // namespace ovq
