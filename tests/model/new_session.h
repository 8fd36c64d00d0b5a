// The state of a new session, for tests and tools without a pool of states.
#pragma once

#include <algorithm>
#include <vector>

#include "model/state_layout.h"

namespace ovq::model::test {

// The bytes of the whole address range.
inline std::vector<std::byte> NewSession(const StateLayout& layout) {
  std::vector<std::byte> session(layout.virtual_bytes());
  for (const StateLayout::Image& image : layout.images()) {
    std::ranges::copy(*image.bytes, session.begin() + static_cast<std::ptrdiff_t>(image.offset));
  }
  return session;
}

}  // namespace ovq::model::test
