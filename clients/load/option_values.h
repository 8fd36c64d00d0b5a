// Setters for one flag's text value each; a failure says what was expected and what came.
#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace ovq::load {

inline absl::Status Expected(absl::string_view what, absl::string_view got) {
  return absl::InvalidArgumentError(absl::StrCat("expected ", what, ", got '", got, "'"));
}

// Whole numbers from low to high; out: an integer or an optional of one.
template <class T>
absl::Status SetInteger(absl::string_view text, uint64_t low, uint64_t high, T& out) {
  uint64_t value = 0;
  if (!absl::SimpleAtoi(text, &value) || value < low || value > high) {
    return Expected(absl::StrCat("a whole number from ", low, " to ", high), text);
  }
  out = value;
  return absl::OkStatus();
}

// Numbers from low to high; out: a floating-point number or an optional of one.
template <class T>
absl::Status SetNumber(absl::string_view text, double low, double high, T& out) {
  double value = 0;
  if (!absl::SimpleAtod(text, &value) || !(value >= low && value <= high)) {
    return Expected(absl::StrCat("a number from ", low, " to ", high), text);
  }
  out = value;
  return absl::OkStatus();
}

// "250ms", "30s", "1h30m" from low to high.
template <class T>
absl::Status SetDuration(absl::string_view text, absl::Duration low, absl::Duration high, T& out) {
  absl::Duration value;
  if (!absl::ParseDuration(text, &value) || value < low || value > high) {
    return Expected(absl::StrCat("a duration from ", absl::FormatDuration(low), " to ",
                                 absl::FormatDuration(high), " like 250ms, 30s or 1h30m"),
                    text);
  }
  out = value;
  return absl::OkStatus();
}

inline absl::Status SetText(absl::string_view text, const char* what, std::string& out) {
  if (text.empty()) return Expected(what, text);
  out = std::string(text);
  return absl::OkStatus();
}

}  // namespace ovq::load
