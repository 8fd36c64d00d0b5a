// CheckLayer validates the bytes of a state before kernels read them: for states that come from
// outside, where no checksum vouches for what the bytes mean.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "kernels/mixers/state.h"

namespace ovq::kernels {

// One layer's part of a session's state, at whatever addresses, each a multiple of 4 bytes.
struct LayerBytes {
  // A part that grows independently (Growth::parts).
  struct Part {
    const std::byte* blocks;  // block 0
    int64_t own_cap;          // the part's slot cap; 0 without one
    int64_t live;             // live slots at this position
  };
  // at(offset) gives the address of the byte at that offset from the session's base.
  template <class At>
  LayerBytes(const MixerState& state, const LayerState& where, int64_t position, int64_t slot_cap,
             At&& at);

  const MixerState& state;
  const LayerState& where;
  int64_t position;
  const std::byte* fixed;
  std::vector<Part> parts;

  const Part& head_part(int head) const { return parts[parts.size() == 1 ? 0 : head]; }
  // The data of a fixed field, or of a field of one block, by its index in MixerState.
  template <class T>
  const T* Fixed(int field) const {
    return reinterpret_cast<const T*>(fixed + state.fixed.offset(field));
  }
  template <class T>
  const T* Block(int field, int64_t block) const {
    const int head = state.FieldHead(field);
    const size_t offset = where.FieldOffset(state, field, block),
                 part = where.PartOffset(parts.size() == 1 ? 0 : head);
    return reinterpret_cast<const T*>(head_part(head).blocks + (offset - part));
  }
};

template <class At>
LayerBytes::LayerBytes(const MixerState& state, const LayerState& where, int64_t position,
                       int64_t slot_cap, At&& at)
    : state(state), where(where), position(position), fixed(at(where.fixed_offset)) {
  const Growth& growth = state.growth;
  for (int part = 0; part < growth.parts(); ++part) {
    parts.push_back({.blocks = at(where.PartOffset(part)),
                     .own_cap = growth.capped() ? growth.HeadSlotCap(slot_cap, part) : 0,
                     .live = growth.exists() ? growth.LiveAt(position, slot_cap, part) : 0});
  }
}

// DataLoss names the field, the element, its value and what was expected.
absl::Status CheckLayer(const LayerBytes& layer);

}  // namespace ovq::kernels
