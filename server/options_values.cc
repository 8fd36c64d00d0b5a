#include "server/options_values.h"

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace ovq {
namespace {

// abseil 20220623 and std have string views of their own where the two are not the same type.
absl::string_view View(std::string_view text) { return {text.data(), text.size()}; }

}  // namespace

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

}  // namespace ovq
