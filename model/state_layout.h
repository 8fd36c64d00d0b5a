// The layout of a whole session: every layer's fixed part, then one growing group per growth law
// (docs/architecture.md, "State"). Sizes follow from the position and the cap in closed form.
//
//   [fixed: layer 0 | layer 1 | ...][group 0: block 0 | block 1 | ...][group 1: ...]
//   a block of a group = that group's layers one after another, each MixerState::block.bytes()
//
// Of a law with shares by head a group is as many runs of blocks as a layer has heads, each with
// the addresses of the longest one, and a block holds one head's part of every layer.
//
// Every layer's part begins at a multiple of kPartAlignment, the fixed part and every group at a
// page. Only where the groups begin depends on the page size: a state's live bytes are the same on
// every device.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "kernels/common/state_memory.h"
#include "kernels/mixers/state.h"

namespace ovq {

// Server-wide limits that size the virtual address ranges.
struct StateLimits {
  int64_t max_slot_cap = 65536;  // the largest cap a session may ask for
  int64_t max_unbounded_tokens =
      1 << 20;  // positions a session may reach if layers grow without a cap
};

class StateLayout {
 public:
  // page_bytes: what the memory of the states is committed in (StatePageBytes of their device).
  StateLayout(std::vector<MixerState> layers, const StateLimits& limits,
              size_t page_bytes = kHostPageBytes);

  const LayerState& layer(int i) const { return layers_[i]; }
  // What the layers' states are made of, as many as layer() knows.
  std::span<const MixerState> mixers() const { return mixers_; }
  const StateLimits& limits() const { return limits_; }
  size_t page_bytes() const { return page_bytes_; }
  // The laws of growth, as LayerState::growth counts them.
  std::span<const Growth> growths() const { return growths_; }
  // What a new session's fixed part holds where that is not zero.
  struct Image {
    size_t offset;
    std::shared_ptr<const std::vector<std::byte>> bytes;
  };
  const std::vector<Image>& images() const { return images_; }
  // A new session's whole address range, for those who keep sessions without a pool.
  std::vector<std::byte> NewSession() const;

  // Physical bytes a session holds after `position` tokens with this slot cap: the whole pages
  // of the fixed part and, in each group, of the blocks that have a live slot. Equal to the pool's
  // committed bytes.
  size_t bytes_at(int64_t position, int64_t slot_cap) const;
  // The most the session will ever hold (layers without a cap: at limits().max_unbounded_tokens).
  size_t bytes_cap(int64_t slot_cap) const;
  // The committed ranges behind bytes_at, in address order; each a multiple of the page size.
  std::vector<StateExtent> extents_at(int64_t position, int64_t slot_cap) const;
  // What of them is in use, end to end a snapshot: the fixed part, then each group's blocks that
  // have a live slot. What follows in their pages is zero.
  std::vector<StateExtent> live_extents_at(int64_t position, int64_t slot_cap) const;
  size_t live_bytes_at(int64_t position, int64_t slot_cap) const;
  // Address range per session. Above kMostBytes nothing that this class tells holds.
  size_t virtual_bytes() const { return virtual_bytes_; }
  static constexpr size_t kMostBytes = size_t{1} << 62;
  bool has_unbounded() const;  // some layer grows a slot a token, without a cap
  bool has_slot_cap() const { return capped() != nullptr; }
  // Of the layers whose slots are capped (0 without one): the cap of sessions that do not say, the
  // slots live after `position` tokens in the mean of these layers and their heads, and the tokens
  // that they then stand for.
  int64_t default_slot_cap() const;
  int64_t LiveSlotsAt(int64_t position, int64_t slot_cap) const;
  int64_t DictionaryTokens(int64_t position) const;
  // Of these tokens, those that share a slot with others, less a token for each slot.
  int64_t MergedTokensAt(int64_t position, int64_t slot_cap) const {
    return DictionaryTokens(position) - LiveSlotsAt(position, slot_cap);
  }
  // The first position after this one where a span of some layer ends or a growing part may take a
  // block: tokens that end before it commit nothing, and can be undone
  // (SequenceMixer::UndoExtents).
  int64_t BoundaryAfter(int64_t position) const;
  // Hash of every field's name, type, shape and offset: equal layouts only.
  uint64_t fingerprint() const { return fingerprint_; }

  // Of a layer's fixed part and of its part of a block: a GPU's widest transaction twice over.
  static constexpr size_t kPartAlignment = 256;

 private:
  struct Group {
    size_t offset = 0;       // from the session's base, page-aligned
    size_t block_bytes = 0;  // all its layers
    size_t part_stride = 0;  // from one run of blocks to the next (Growth::parts), page-aligned
    int64_t n_layers = 0;
    size_t bytes_for_slots(int64_t slots) const;
  };
  size_t WholePages(size_t bytes) const;
  int64_t MostSlots(const Growth& growth, int64_t slot_cap, int part) const;
  // Of the fixed part and of so many slots in every run of blocks.
  size_t SumBytes(const std::function<int64_t(const Growth&, int part)>& slots) const;
  void PlaceGroups();
  const Growth* capped() const;  // the first law with a cap

  std::vector<MixerState> mixers_;
  std::vector<LayerState> layers_;
  std::vector<Growth> growths_;
  std::vector<Group> groups_;  // by law
  std::vector<Image> images_;
  StateLimits limits_;
  size_t page_bytes_;
  size_t fixed_bytes_ = 0;  // all layers, each aligned
  size_t virtual_bytes_ = 0;
  uint64_t fingerprint_ = 0;
};

}  // namespace ovq
