// What an option of a program takes: how its text is read, and how errors and --help say so.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/values.h"

namespace ovq {

struct FlagValue {
  std::string takes;     // "a whole number from 1 to 9"; empty: only an error says it
  std::string fallback;  // the default, as --help shows it; empty: none
  std::function<absl::Status(std::string_view text)> set;
};

template <class T>
struct Unwrapped {
  using type = T;
};
template <class T>
struct Unwrapped<std::optional<T>> {
  using type = T;
};
// What is read for a variable of type T: a T, or what the optional T holds.
template <class T>
using ReadAs = typename Unwrapped<T>::type;

// parse: text to an optional, empty for what is not `takes`; sink: what to do with what was read.
template <class Parse, class Sink>
FlagValue ReadTo(Sink sink, const std::string& takes, Parse parse) {
  return {.takes = takes, .fallback = "", .set = [=](std::string_view text) -> absl::Status {
            const auto value = parse(text);
            if (!value) return Expected(takes, text);
            sink(*value);
            return absl::OkStatus();
          }};
}
// Into a variable that outlives the flag and holds the default, which `show` turns into text.
template <class T, class Parse, class Show>
FlagValue ReadInto(T& out, const std::string& takes, Parse parse, Show show) {
  FlagValue value = ReadTo([&out](const auto& read) { out = read; }, takes, parse);
  if constexpr (std::is_same_v<T, ReadAs<T>>) value.fallback = show(out);
  return value;
}

template <class T>
std::optional<T> ParseNumber(std::string_view text, T low, T high) {
  std::conditional_t<std::is_floating_point_v<T>, double, T> value = 0;
  const absl::string_view view(text.data(), text.size());
  bool whole;
  if constexpr (std::is_floating_point_v<T>) {
    whole = absl::SimpleAtod(view, &value);
  } else {
    whole = absl::SimpleAtoi(view, &value);
  }
  if (!whole || !(value >= low && value <= high)) return std::nullopt;
  return static_cast<T>(value);
}
template <class T>
std::string NumberRange(T low, T high) {
  if (std::is_floating_point_v<T> && high == std::numeric_limits<T>::max()) return "a number";
  return absl::StrCat(std::is_floating_point_v<T> ? "a number" : "a whole number", " from ", low,
                      " to ", high);
}
// Whole numbers for integer types.
template <class T>
FlagValue NumberTo(std::function<void(T)> sink, T low = std::numeric_limits<T>::lowest(),
                   T high = std::numeric_limits<T>::max()) {
  return ReadTo(std::move(sink), NumberRange(low, high),
                [=](std::string_view text) { return ParseNumber(text, low, high); });
}
template <class T>
FlagValue Number(T& out, ReadAs<T> low, ReadAs<T> high) {
  return ReadInto(
      out, NumberRange(low, high),
      [=](std::string_view text) { return ParseNumber(text, low, high); },
      [](ReadAs<T> value) { return absl::StrCat(value); });
}

// "512,2048": at least one, each from low to high.
FlagValue Integers(std::vector<int64_t>& out, int64_t low, int64_t high);

// One of some names.
template <class T>
FlagValue Choice(T& out, const std::vector<std::pair<std::string, ReadAs<T>>>& names) {
  std::string takes;
  for (size_t i = 0; i < names.size(); ++i) {
    absl::StrAppend(&takes, i == 0 ? "" : i + 1 < names.size() ? ", " : " or ", names[i].first);
  }
  const auto parse = [names](std::string_view text) -> std::optional<ReadAs<T>> {
    for (const auto& [name, value] : names) {
      if (text == name) return value;
    }
    return std::nullopt;
  };
  return ReadInto(out, takes, parse, [&names](ReadAs<T> held) {
    for (const auto& [name, value] : names) {
      if (held == value) return name;
    }
    return std::string();
  });
}
// Some of the names, each once: "paper,exact". At least one; one is the default.
template <class T>
FlagValue Choices(std::vector<T>& out, const std::vector<std::pair<std::string, T>>& names) {
  T first = out.front();
  const FlagValue one = Choice(first, names);
  const auto parse = [names](std::string_view text) -> std::optional<std::vector<T>> {
    std::vector<T> values;
    while (true) {
      const size_t comma = text.find(',');
      const auto found =
          std::ranges::find(names, text.substr(0, comma), &std::pair<std::string, T>::first);
      if (found == names.end() || std::ranges::count(values, found->second)) return std::nullopt;
      values.push_back(found->second);
      if (comma == std::string_view::npos) return values;
      text.remove_prefix(comma + 1);
    }
  };
  FlagValue value = ReadTo([&out](const auto& read) { out = read; },
                           absl::StrCat(one.takes, ", or several with commas between"), parse);
  value.fallback = one.fallback;
  return value;
}
// The places of the names are the values of the enum T.
template <class T, size_t kCount>
FlagValue Choice(T& out, const std::array<const char*, kCount>& names) {
  std::vector<std::pair<std::string, T>> pairs;
  for (size_t i = 0; i < kCount; ++i) pairs.emplace_back(names[i], static_cast<T>(i));
  return Choice(out, pairs);
}

// What is not empty.
std::optional<std::string> ParseText(std::string_view text);
template <class T>
FlagValue Text(T& out, const std::string& what) {
  return ReadInto(out, what, ParseText, [](const std::string& held) { return held; });
}

// HOST:PORT with a port from lowest_port to 65535.
FlagValue Address(std::string& out, int lowest_port);

// "512M", "1.5GiB"; below 0: any size.
std::string SizeRange(size_t below);
template <class T>
FlagValue Size(T& out, size_t below = 0) {
  const auto parse = [below](std::string_view text) -> std::optional<size_t> {
    const absl::StatusOr<size_t> size = ParseSize(text);
    if (!size.ok() || (below > 0 && *size >= below)) return std::nullopt;
    return *size;
  };
  return ReadInto(out, SizeRange(below), parse, SizeText);
}

// The same, or 0.
template <class T>
FlagValue SizeOrZero(T& out) {
  const auto parse = [](std::string_view text) -> std::optional<size_t> {
    if (text == "0") return 0;
    const absl::StatusOr<size_t> size = ParseSize(text);
    return size.ok() ? std::optional(*size) : std::nullopt;
  };
  return ReadInto(out, absl::StrCat("0 or ", SizeRange(0)), parse, SizeText);
}

// "250ms", "30s", "1h30m".
std::optional<absl::Duration> ParseDuration(std::string_view text, absl::Duration low,
                                            absl::Duration high);
template <class T>
FlagValue Duration(T& out, absl::Duration low, absl::Duration high) {
  return ReadInto(
      out,
      absl::StrCat("a duration with its unit from ", absl::FormatDuration(low), " to ",
                   absl::FormatDuration(high)),
      [=](std::string_view text) { return ParseDuration(text, low, high); }, absl::FormatDuration);
}

// What has a parser of its own: text to a StatusOr whose error says what was expected.
template <class T, class Parse>
FlagValue Parsed(T& out, const std::string& fallback, Parse parse) {
  return {.takes = "", .fallback = fallback, .set = [&out, parse](std::string_view text) {
            auto value = parse(absl::string_view(text.data(), text.size()));
            if (value.ok()) out = *value;
            return value.status();
          }};
}

}  // namespace ovq
