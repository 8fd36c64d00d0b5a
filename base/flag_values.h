// FlagValue: how an option's text is parsed, and how errors and --help describe it.
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
#include "base/text.h"
#include "base/values.h"

namespace ovq {

struct FlagValue {
  std::string takes;     // "a whole number from 1 to 9"; empty: described by errors alone
  std::string fallback;  // the default as shown by --help; empty: none
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
// The type parsed for a variable of type T: T itself, or U for std::optional<U>.
template <class T>
using ReadAs = typename Unwrapped<T>::type;

// parse: text to an optional, empty if the text is not `takes`. sink: receives the parsed value.
template <class Parse, class Sink>
FlagValue ReadTo(Sink sink, const std::string& takes, Parse parse) {
  return {.takes = takes, .fallback = "", .set = [=](std::string_view text) -> absl::Status {
            const auto value = parse(text);
            if (!value) return Expected(takes, text);
            sink(*value);
            return absl::OkStatus();
          }};
}
// Sets a variable that outlives the flag and holds the default, which `show` turns into text.
template <class T, class Parse, class Show>
FlagValue ReadInto(T& out, const std::string& takes, Parse parse, Show show) {
  FlagValue value = ReadTo([&out](const auto& read) { out = read; }, takes, parse);
  if constexpr (std::is_same_v<T, ReadAs<T>>) value.fallback = show(out);
  return value;
}

template <class T>
std::optional<T> ParseNumber(std::string_view text, T low, T high) {
  std::conditional_t<std::is_floating_point_v<T>, double, T> value = 0;
  bool whole;
  if constexpr (std::is_floating_point_v<T>) {
    whole = absl::SimpleAtod(AbslView(text), &value);
  } else {
    whole = absl::SimpleAtoi(AbslView(text), &value);
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
// A whole number if T is an integer type, else a real number.
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

// A list such as "512,2048": at least one number, each from low to high.
FlagValue Integers(std::vector<int64_t>& out, int64_t low, int64_t high);

// One of the names.
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
// A list of distinct names such as "paper,exact", at least one. One name is the default.
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
// One of the names; name i stands for value i of the enum T.
template <class T, size_t kCount>
FlagValue Choice(T& out, const std::array<const char*, kCount>& names) {
  std::vector<std::pair<std::string, T>> pairs;
  for (size_t i = 0; i < kCount; ++i) pairs.emplace_back(names[i], static_cast<T>(i));
  return Choice(out, pairs);
}

// The text, unless it is empty.
std::optional<std::string> ParseText(std::string_view text);
template <class T>
FlagValue Text(T& out, const std::string& what) {
  return ReadInto(out, what, ParseText, [](const std::string& held) { return held; });
}

// HOST:PORT with a port from lowest_port to 65535.
FlagValue Address(std::string& out, int lowest_port);

// Describes sizes such as "512M" or "1.5GiB" below `below`; 0: any size.
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

// A size or 0.
template <class T>
FlagValue SizeOrZero(T& out) {
  const auto parse = [](std::string_view text) -> std::optional<size_t> {
    if (text == "0") return 0;
    const absl::StatusOr<size_t> size = ParseSize(text);
    return size.ok() ? std::optional(*size) : std::nullopt;
  };
  return ReadInto(out, absl::StrCat("0 or ", SizeRange(0)), parse, SizeText);
}

// A duration such as "250ms", "30s" or "1h30m".
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

// A value with a parser of its own, text to a StatusOr whose error says what was expected.
template <class T, class Parse>
FlagValue Parsed(T& out, const std::string& fallback, Parse parse) {
  return {.takes = "", .fallback = fallback, .set = [&out, parse](std::string_view text) {
            auto value = parse(AbslView(text));
            if (value.ok()) out = *value;
            return value.status();
          }};
}

}  // namespace ovq
