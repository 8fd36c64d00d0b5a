#include "model/constraint/json_number.h"

#include <algorithm>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/text.h"
#include "model/constraint/regex.h"

namespace ovq::constraint {
namespace {

constexpr int kMostExactDigits = 15;  // of any decimal that a double keeps
constexpr int kMostDigits = 20;
constexpr int64_t kMostExpanded = 400;

std::strong_ordering CompareMagnitudes(const Decimal& a, const Decimal& b) {
  if (a.whole.size() != b.whole.size()) return a.whole.size() <=> b.whole.size();
  if (a.whole != b.whole) return a.whole <=> b.whole;
  return a.fraction <=> b.fraction;  // without trailing zeros, a prefix is smaller
}

// The digits as one number, and how many of them stand behind the point. The digits must be few.
int64_t Scaled(const Decimal& number) {
  int64_t value = 0;
  for (const char digit : number.whole + number.fraction) value = value * 10 + (digit - '0');
  return value;
}

int64_t PowerOfTen(size_t exponent, int64_t modulus) {
  int64_t power = 1 % modulus;
  for (size_t i = 0; i < exponent; ++i) power = power * 10 % modulus;
  return power;
}

bool IsMultiple(const Decimal& number, const Decimal& divisor) {
  const int64_t modulus = Scaled(divisor);
  if (number.fraction.size() > divisor.fraction.size()) {
    // Digits behind the last of the divisor's are not all zero.
    return false;
  }
  int64_t rest = 0;
  for (const char digit : number.whole + number.fraction) {
    rest = (rest * 10 + (digit - '0')) % modulus;
  }
  return rest * PowerOfTen(divisor.fraction.size() - number.fraction.size(), modulus) % modulus ==
         0;
}

// Reads a number's text and compares it with a bound.
class BoundMachine {
 public:
  enum class Relation : uint8_t { kLess, kAtMost, kAtLeast, kGreater };

  BoundMachine(const Decimal& bound, Relation relation)
      : is_negative_(bound.is_negative),
        whole_(bound.whole.empty() ? "0" : bound.whole),
        fraction_(bound.fraction),
        relation_(relation) {}

  absl::StatusOr<Language> Run(Budget& budget) const {
    return MachineLanguage(
        {.start = Pack({}),
         .symbols = "-.0123456789",
         .step = [this](int64_t state, char symbol) { return Step(Unpack(state), symbol); },
         .accepts = [this](int64_t state) { return Accepts(Unpack(state)); }},
        budget);
  }

 private:
  struct State {
    bool is_negative = false;
    bool in_fraction = false;
    int64_t order = 1;  // of the digits read and the bound's first ones: 0 less, 1 equal, 2 greater
    int64_t n_digits = 0;  // read, before the point or behind it
  };
  static int64_t Pack(const State& s) {
    return s.n_digits << 4 | s.order << 2 | int64_t{s.in_fraction} << 1 | int64_t{s.is_negative};
  }
  static State Unpack(int64_t s) { return {(s & 1) != 0, (s >> 1 & 1) != 0, s >> 2 & 3, s >> 4}; }

  // The order of the whole parts once all digits before the point are read.
  int64_t WholeOrder(const State& s) const {
    const auto n_bound = static_cast<int64_t>(whole_.size());
    return s.n_digits == n_bound ? s.order : s.n_digits < n_bound ? 0 : 2;
  }

  int64_t Step(State s, char symbol) const {
    if (symbol == '-') {
      if (s.n_digits > 0 || s.is_negative || s.in_fraction) return -1;
      s.is_negative = true;
      return Pack(s);
    }
    if (symbol == '.') {
      if (s.in_fraction || s.n_digits == 0) return -1;
      s.order = WholeOrder(s);
      s.in_fraction = true;
      s.n_digits = 0;
      return Pack(s);
    }
    const std::string& digits = s.in_fraction ? fraction_ : whole_;
    const auto n_bound = static_cast<int64_t>(digits.size());
    const char other = s.n_digits < n_bound ? digits[s.n_digits] : '0';
    if (s.order == 1 && (s.in_fraction || s.n_digits < n_bound)) {
      s.order = symbol < other ? 0 : symbol > other ? 2 : 1;
    }
    s.n_digits = std::min(s.n_digits + 1, n_bound + 1);
    return Pack(s);
  }

  bool Accepts(const State& s) const {
    if (!s.in_fraction && s.n_digits == 0) return false;
    int64_t order = s.in_fraction ? s.order : WholeOrder(s);
    const int64_t n_fraction = s.in_fraction ? s.n_digits : 0;
    if (order == 1 && n_fraction < static_cast<int64_t>(fraction_.size())) order = 0;
    if (s.is_negative != is_negative_) {
      order = s.is_negative ? 0 : 2;
    } else if (s.is_negative) {
      order = 2 - order;
    }
    switch (relation_) {
      case Relation::kLess:
        return order == 0;
      case Relation::kAtMost:
        return order <= 1;
      case Relation::kAtLeast:
        return order >= 1;
      default:
        return order == 2;
    }
  }

  const bool is_negative_;
  const std::string whole_;
  const std::string fraction_;
  const Relation relation_;
};

// The decimal texts whose numbers are multiples. States: the remainder of the digits read, and how
// many of them stand behind the point (one more than that, 0 before the point).
absl::StatusOr<Language> MultipleTexts(const Decimal& divisor, Budget& budget) {
  const int64_t modulus = Scaled(divisor);
  const size_t n_fraction = divisor.fraction.size();
  const int64_t n_phases = static_cast<int64_t>(n_fraction) + 2;
  RETURN_IF_ERROR(budget.CheckStates(modulus));
  return MachineLanguage(
      {.start = 0,
       .symbols = "-.0123456789",
       .step = [=](int64_t state, char symbol) -> int64_t {
         const int64_t phase = state % n_phases;
         const int64_t rest = state / n_phases;
         if (symbol == '-') return state;
         if (symbol == '.') return phase == 0 && n_fraction > 0 ? state + 1 : -1;
         if (phase + 1 == n_phases) return -1;
         const int64_t next = (rest * 10 + (symbol - '0')) % modulus;
         return next * n_phases + phase + (phase > 0 ? 1 : 0);
       },
       .accepts =
           [=](int64_t state) {
             const int64_t phase = state % n_phases;
             const size_t n_read = phase == 0 ? 0 : phase - 1;
             return state / n_phases * PowerOfTen(n_fraction - n_read, modulus) % modulus == 0;
           }},
      budget);
}

absl::StatusOr<Language> FreeNumberTexts(Budget& budget) {
  return RegexLanguage(
      "(0|-?[1-9][0-9]{0,19}|(-?[1-9][0-9]{0,19}|0)\\.[0-9]{1,20}|-0\\.0{0,19}[1-9][0-9]{0,19})"
      "([eE][+-]?[0-9]{1,2})?",
      Match::kWhole, /*depth=*/4, budget);
}

absl::StatusOr<Language> IntegerTexts(int n_digits, Budget& budget) {
  return RegexLanguage(absl::StrCat("0|-?[1-9][0-9]{0,", n_digits - 1, "}"), Match::kWhole,
                       /*depth=*/4, budget);
}

absl::StatusOr<Language> ExactDecimalTexts(Budget& budget) {
  const std::string up_to = absl::StrCat("{0,", kMostExactDigits - 1, "}");
  ASSIGN_OR_RETURN(
      const Language form,
      RegexLanguage(absl::StrCat("0|-?[1-9][0-9]", up_to, "|(-?[1-9][0-9]", up_to,
                                 "|0)\\.[0-9][0-9]", up_to, "|-0\\.0", up_to, "[1-9][0-9]", up_to),
                    Match::kWhole, /*depth=*/4, budget));
  ASSIGN_OR_RETURN(const Language few_digits,
                   RegexLanguage(absl::StrCat("-?([0-9]\\.?){1,", kMostExactDigits, "}"),
                                 Match::kWhole, /*depth=*/4, budget));
  return Intersection(form, few_digits, budget);
}

}  // namespace

std::strong_ordering Decimal::operator<=>(const Decimal& other) const {
  if (is_negative != other.is_negative) {
    return is_negative ? std::strong_ordering::less : std::strong_ordering::greater;
  }
  return is_negative ? CompareMagnitudes(other, *this) : CompareMagnitudes(*this, other);
}

std::optional<Decimal> ParseDecimal(std::string_view text) {
  Decimal number;
  if (text.starts_with('-')) {
    number.is_negative = true;
    text.remove_prefix(1);
  }
  int64_t exponent = 0;
  if (const size_t e = text.find_first_of("eE"); e != std::string_view::npos) {
    if (!absl::SimpleAtoi(AbslView(text.substr(e + 1)), &exponent)) return std::nullopt;
    text = text.substr(0, e);
  }
  if (std::abs(exponent) > kMostExpanded) return std::nullopt;
  const size_t point = std::min(text.find('.'), text.size());
  number.whole = text.substr(0, point);
  if (point < text.size()) number.fraction = text.substr(point + 1);
  for (; exponent > 0; --exponent) {
    number.whole += number.fraction.empty() ? '0' : number.fraction[0];
    if (!number.fraction.empty()) number.fraction.erase(0, 1);
  }
  for (; exponent < 0; ++exponent) {
    number.fraction.insert(0, 1, number.whole.empty() ? '0' : number.whole.back());
    if (!number.whole.empty()) number.whole.pop_back();
  }
  number.whole.erase(0, std::min(number.whole.find_first_not_of('0'), number.whole.size()));
  number.fraction.erase(number.fraction.find_last_not_of('0') + 1);
  if (number.is_zero()) number.is_negative = false;
  return number;
}

bool NumberBounds::Allows(const Decimal& number) const {
  if (is_integer && !number.is_integer()) return false;
  if (least && (number < *least || (excludes_least && number == *least))) return false;
  if (most && (number > *most || (excludes_most && number == *most))) return false;
  return std::all_of(multiples.begin(), multiples.end(),
                     [&](const Decimal& divisor) { return IsMultiple(number, divisor); });
}

absl::StatusOr<Language> NumberTexts(const NumberBounds& bounds, Budget& budget) {
  const bool is_free = !bounds.least && !bounds.most && bounds.multiples.empty();
  if (is_free)
    return bounds.is_integer ? IntegerTexts(kMostDigits, budget) : FreeNumberTexts(budget);
  // Rounding keeps the order of integers, so bounds of more digits are kept by all readers, unless
  // they exclude their numbers.
  int n_digits = kMostExactDigits;
  if (bounds.multiples.empty() && !bounds.excludes_least && !bounds.excludes_most) {
    for (const auto* bound : {&bounds.least, &bounds.most}) {
      if (*bound) n_digits = std::max(n_digits, static_cast<int>((*bound)->whole.size()));
    }
  }
  absl::StatusOr<Language> texts = bounds.is_integer
                                       ? IntegerTexts(std::min(n_digits, kMostDigits), budget)
                                       : ExactDecimalTexts(budget);
  using Relation = BoundMachine::Relation;
  const auto intersect = [&](const absl::StatusOr<Language>& other) {
    if (texts.ok() && !other.ok()) texts = other.status();
    if (texts.ok()) texts = Intersection(*texts, *other, budget);
  };
  if (bounds.least) {
    const Relation relation = bounds.excludes_least ? Relation::kGreater : Relation::kAtLeast;
    intersect(BoundMachine(*bounds.least, relation).Run(budget));
  }
  if (bounds.most) {
    const Relation relation = bounds.excludes_most ? Relation::kLess : Relation::kAtMost;
    intersect(BoundMachine(*bounds.most, relation).Run(budget));
  }
  for (const Decimal& divisor : bounds.multiples) {
    intersect(MultipleTexts(divisor, budget));
  }
  return texts;
}

}  // namespace ovq::constraint
