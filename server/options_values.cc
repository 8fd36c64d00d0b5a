#include "server/options_values.h"

#include <cmath>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/strip.h"

namespace ovq {
namespace {

// abseil 20220623 and std have string views of their own where the two are not the same type.
absl::string_view View(std::string_view text) { return {text.data(), text.size()}; }

}  // namespace

absl::Status Expected(std::string_view what, std::string_view got) {
  return absl::InvalidArgumentError(
      absl::StrFormat("expected %s, got '%s'", View(what), View(got)));
}

absl::Status SetInteger(std::string_view text, int64_t low, int64_t high, int64_t& out) {
  int64_t value = 0;
  if (!absl::SimpleAtoi(View(text), &value) || value < low || value > high) {
    return Expected(absl::StrCat("a whole number from ", low, " to ", high), text);
  }
  out = value;
  return absl::OkStatus();
}

absl::Status SetAddress(std::string_view text, std::string& out) {
  const size_t colon = text.rfind(':');
  int port = -1;
  if (colon == std::string_view::npos || colon == 0 ||
      !absl::SimpleAtoi(View(text.substr(colon + 1)), &port) || port < 0 || port > 65535) {
    return Expected("HOST:PORT with a port from 0 to 65535", text);
  }
  out = std::string(text);
  return absl::OkStatus();
}

absl::Status SetDType(std::string_view text, std::optional<DType>& out) {
  if (text == "f32") {
    out = DType::kF32;
  } else if (text == "bf16") {
    out = DType::kBF16;
  } else {
    return Expected("f32 or bf16", text);
  }
  return absl::OkStatus();
}

absl::Status SetDevice(std::string_view text, Device& out) {
  absl::StatusOr<Device> device = ParseDevice(text);
  if (!device.ok()) return Expected("cpu, ref or cuda", text);
  out = *device;
  return absl::OkStatus();
}

absl::Status SetDuration(std::string_view text, absl::Duration low, absl::Duration high,
                         absl::Duration& out) {
  absl::StatusOr<absl::Duration> value = ParseDuration(text);
  if (!value.ok() || *value < low || *value > high) {
    return Expected(absl::StrCat("a duration with its unit from ", absl::FormatDuration(low),
                                 " to ", absl::FormatDuration(high)),
                    text);
  }
  out = *value;
  return absl::OkStatus();
}

absl::StatusOr<size_t> ParseSize(std::string_view text) {
  const absl::Status bad = Expected("a size such as 512M, 8G or 1.5GiB", text);
  size_t digits = 0;
  while (digits < text.size() && (absl::ascii_isdigit(text[digits]) || text[digits] == '.')) {
    ++digits;
  }
  double value = 0;
  if (digits == 0 || !absl::SimpleAtod(View(text.substr(0, digits)), &value)) return bad;
  std::string unit = absl::AsciiStrToUpper(View(text.substr(digits)));
  if (unit.size() > 1) {
    absl::string_view stem = unit;
    if (!absl::ConsumeSuffix(&stem, "IB")) absl::ConsumeSuffix(&stem, "B");
    unit = std::string(stem);
  }
  constexpr std::string_view kUnits = "BKMGT";
  const size_t power = unit.empty() ? 0 : kUnits.find(unit);
  if (unit.size() > 1 || power == std::string_view::npos) return bad;
  value *= std::pow(1024.0, static_cast<double>(power));
  if (!(value >= 1.0 && value <= 9e18)) return bad;
  return static_cast<size_t>(value);
}

absl::StatusOr<absl::Duration> ParseDuration(std::string_view text) {
  absl::Duration value;
  if (!absl::ParseDuration(View(text), &value) || value < absl::ZeroDuration()) {
    return Expected("a duration such as 30s, 5m or 1h", text);
  }
  return value;
}

}  // namespace ovq
