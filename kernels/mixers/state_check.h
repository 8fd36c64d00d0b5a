// Whether the bytes of a state are such that kernels may have them: for states that come from
// outside, where no checksum says what the bytes mean.
#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "kernels/mixers/state.h"

namespace ovq {

// One layer's part of a session's state, wherever it lies; at multiples of 4 bytes.
struct LayerBytes {
  const MixerState& state;
  const std::byte* fixed;
  const std::byte* blocks;  // block 0
  size_t block_stride;
  int64_t position;
  int64_t own_cap;  // of slots, the layer's; 0 without one
  int64_t live;     // slots at this position

  // The field of that place in the list of fixed fields, or of a block's.
  template <class T>
  const T* Fixed(int field) const {
    return reinterpret_cast<const T*>(fixed + state.fixed.offset(field));
  }
  template <class T>
  const T* Block(int field, int64_t block) const {
    return reinterpret_cast<const T*>(blocks + static_cast<size_t>(block) * block_stride +
                                      state.block.offset(field));
  }
};

// DataLoss names the field, the element, what it is and what was expected.
absl::Status CheckLayer(const LayerBytes& layer);

}  // namespace ovq
