// Numbers of JSON as decimal texts: their order, their multiples, and the languages of bounds.
#pragma once

#include <compare>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "model/constraint/regular.h"

namespace ovq::constraint {

// An exact decimal fraction.
struct Decimal {
  bool is_negative = false;   // never for zero
  std::string whole = {};     // digits before the point, without leading zeros: "" for 0.5
  std::string fraction = {};  // digits behind it, without trailing zeros: "" for 5

  bool is_zero() const { return whole.empty() && fraction.empty(); }
  bool is_integer() const { return fraction.empty(); }
  bool operator==(const Decimal&) const = default;
  std::strong_ordering operator<=>(const Decimal& other) const;
};

// A number as JSON writes it; nothing if it has more than some 400 digits without an exponent.
std::optional<Decimal> ParseDecimal(std::string_view text);

inline constexpr size_t kMostDivisorDigits = 12;  // of multipleOf

struct NumberBounds {
  bool is_integer = false;
  std::optional<Decimal> least = {};
  bool excludes_least = false;
  std::optional<Decimal> most = {};
  bool excludes_most = false;
  std::vector<Decimal> multiples = {};  // positive

  bool Allows(const Decimal& number) const;
  bool operator==(const NumberBounds&) const = default;
};

// The numbers as texts: minus zero is never one of them, and an integer has neither point nor
// exponent. Without bounds and multiples up to 20 digits stand on either side of the point, and a
// fraction may have an exponent of two digits. With them a number has at most 15 digits, which
// every reader keeps exactly (an integer as many as its bounds), and no exponent. May be empty.
absl::StatusOr<Language> NumberTexts(const NumberBounds& bounds, Budget& budget);

}  // namespace ovq::constraint
