#include "base/values.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/strip.h"
#include "base/text.h"

namespace ovq {
absl::Status Expected(std::string_view what, std::string_view got) {
  return absl::InvalidArgumentError(
      absl::StrFormat("expected %s, got '%s'", AbslView(what), AbslView(got)));
}

absl::StatusOr<size_t> ParseSize(std::string_view text) {
  const absl::Status bad = Expected("a size such as 512M, 8G or 1.5GiB", text);
  const size_t digits = std::min(text.find_first_not_of("0123456789."), text.size());
  double value = 0;
  if (digits == 0 || !absl::SimpleAtod(AbslView(text.substr(0, digits)), &value)) return bad;
  std::string unit = absl::AsciiStrToUpper(AbslView(text.substr(digits)));
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

std::string SizeText(size_t bytes) {
  constexpr std::string_view kUnits = "KMGT";
  int power = 0;
  for (; power < 4 && bytes > 0 && bytes % 1024 == 0; ++power) bytes /= 1024;
  return power == 0 ? absl::StrCat(bytes)
                    : absl::StrCat(bytes, AbslView(kUnits.substr(power - 1, 1)));
}

}  // namespace ovq
