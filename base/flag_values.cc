#include "base/flag_values.h"

#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"

namespace ovq {
FlagValue Integers(std::vector<int64_t>& out, int64_t low, int64_t high) {
  const std::string takes = absl::StrCat(NumberRange(low, high), ", or several with commas");
  const auto set = [=, &out](std::string_view text) -> absl::Status {
    out.clear();
    for (const absl::string_view part : absl::StrSplit(AbslView(text), ',')) {
      const std::string_view number(part.data(), part.size());
      const std::optional<int64_t> value = ParseNumber(number, low, high);
      if (!value) return Expected(takes, number);
      out.push_back(*value);
    }
    return absl::OkStatus();
  };
  return {.takes = takes, .fallback = absl::StrJoin(out, ","), .set = set};
}

std::optional<std::string> ParseText(std::string_view text) {
  if (text.empty()) return std::nullopt;
  return std::string(text);
}

FlagValue Address(std::string& out, int lowest_port) {
  const auto parse = [lowest_port](std::string_view text) -> std::optional<std::string> {
    const size_t colon = text.rfind(':');
    if (colon == std::string_view::npos || colon == 0) return std::nullopt;
    if (!ParseNumber(text.substr(colon + 1), lowest_port, 65535)) return std::nullopt;
    return std::string(text);
  };
  return ReadInto(out, absl::StrCat("HOST:PORT with a port from ", lowest_port, " to 65535"), parse,
                  [](const std::string& held) { return held; });
}

std::string SizeRange(size_t below) {
  if (below == 0) return "a size such as 512M, 8G or 1.5GiB";
  return absl::StrCat("a size below ", SizeText(below));
}

std::optional<absl::Duration> ParseDuration(std::string_view text, absl::Duration low,
                                            absl::Duration high) {
  absl::Duration value;
  if (!absl::ParseDuration(AbslView(text), &value) || value < low || value > high)
    return std::nullopt;
  return value;
}

}  // namespace ovq
