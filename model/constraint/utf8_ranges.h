// Sets of code points, and their UTF-8 as automata over bytes.
#pragma once

#include <compare>
#include <string>
#include <vector>

#include "model/constraint/dfa.h"

namespace ovq::constraint {

struct CodePointRange {
  char32_t first, last;  // inclusive
  auto operator<=>(const CodePointRange&) const = default;
};
inline constexpr char32_t kLastCodePoint = 0x10ffff;

// The set as ascending ranges that neither overlap nor touch; without surrogates and without what
// lies beyond kLastCodePoint, which have no UTF-8.
std::vector<CodePointRange> NormalRanges(std::vector<CodePointRange> ranges);
// All other code points; normal.
std::vector<CodePointRange> ComplementRanges(std::vector<CodePointRange> ranges);

// The texts of one code point of the set, in UTF-8. An empty set gives an
// automaton that accepts nothing.
Dfa CodePointDfa(std::vector<CodePointRange> ranges);

// Appends the code point in UTF-8. code: not a surrogate, at most kLastCodePoint.
void AppendUtf8(char32_t code, std::string& text);

}  // namespace ovq::constraint
