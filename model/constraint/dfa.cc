#include "model/constraint/dfa.h"

namespace ovq::constraint {

bool Dfa::Matches(std::string_view text) const {
  int32_t at = 0;
  if (states_.empty()) return false;
  for (const char c : text) {
    const auto byte = static_cast<uint8_t>(c);
    int32_t to = -1;
    for (const Range& range : states_[at].ranges) {
      if (range.first <= byte && byte <= range.last) to = range.to;
    }
    if (to < 0) return false;
    at = to;
  }
  return states_[at].accepts;
}

}  // namespace ovq::constraint
