// StateLayout places all layers' states in a session's address range: every layer's fixed part,
// then one growing group per growth law (docs/architecture.md, "State"). Sizes follow in closed
// form from position and slot cap.
//
//   [fixed: layer 0 | layer 1 | ...][group 0: block 0 | block 1 | ...][group 1: ...]
//   block of a group = the parts of its layers in order, each MixerState::block.bytes()
//
// A growth law with shares by head has as many runs of blocks as a layer has heads. Each run has
// the address range of the longest one, and a block holds one head's part of every layer.
//
// Every layer's part begins at a multiple of kPartAlignment, the fixed part and every group at a
// page. Only the groups' offsets depend on the page size; a state's live bytes are the same on
// every device.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "kernels/common/state_memory.h"
#include "kernels/mixers/state.h"

namespace ovq::model {

// Server-wide limits, from which the size of the address ranges follows.
struct StateLimits {
  int64_t max_slot_cap = 65536;  // the largest cap a session may ask for
  int64_t max_unbounded_tokens =
      1 << 20;  // positions a session may reach if some layer grows without a cap
};

class StateLayout {
 public:
  // page_bytes: unit in which the device commits state memory (StatePageBytes).
  StateLayout(std::vector<kernels::MixerState> layers, const StateLimits& limits,
              size_t page_bytes = kernels::kHostPageBytes);

  const kernels::LayerState& layer(int i) const { return layers_[i]; }
  // The states of the layers, in the order of layer().
  std::span<const kernels::MixerState> mixers() const { return mixers_; }
  const StateLimits& limits() const { return limits_; }
  size_t page_bytes() const { return page_bytes_; }
  // The growth laws; LayerState::growth is an index into them.
  std::span<const kernels::Growth> growths() const { return growths_; }
  // Part of a new session's fixed part that is not zero.
  struct Image {
    size_t offset;
    std::shared_ptr<const std::vector<std::byte>> bytes;
  };
  const std::vector<Image>& images() const { return images_; }

  // Bytes of memory committed for a session after `position` tokens with this slot cap: whole pages
  // of the fixed part and, in each group, of the blocks that have a live slot. Equal to what the
  // pool commits.
  size_t bytes_at(int64_t position, int64_t slot_cap) const;
  // The most bytes the session will ever hold. Layers without a cap count at
  // limits().max_unbounded_tokens.
  size_t bytes_cap(int64_t slot_cap) const;
  // The committed ranges behind bytes_at, in address order; each a multiple of the page size.
  std::vector<kernels::StateExtent> extents_at(int64_t position, int64_t slot_cap) const {
    return ExtentsAt(position, slot_cap, page_bytes_);
  }
  // The used bytes within extents_at, which end to end make a snapshot: the fixed part, then each
  // group's blocks that have a live slot. The rest of their pages is zero.
  std::vector<kernels::StateExtent> live_extents_at(int64_t position, int64_t slot_cap) const {
    return ExtentsAt(position, slot_cap, 1);
  }
  size_t live_bytes_at(int64_t position, int64_t slot_cap) const;
  // Size of a session's address range. Above kMostBytes no size of this class is meaningful.
  size_t virtual_bytes() const { return virtual_bytes_; }
  static constexpr size_t kMostBytes = size_t{1} << 62;
  bool has_unbounded() const;  // some layer grows by a slot a token, without a cap
  bool has_slot_cap() const { return capped() != nullptr; }
  // For layers with a slot cap (0 if there are none): the default cap of sessions, the number of
  // slots live after `position` tokens, averaged over these layers and their heads, and the number
  // of tokens in these slots.
  int64_t default_slot_cap() const;
  int64_t LiveSlotsAt(int64_t position, int64_t slot_cap) const;
  int64_t DictionaryTokens(int64_t position) const;
  // Number of tokens that were merged into slots of others: tokens less live slots.
  int64_t MergedTokensAt(int64_t position, int64_t slot_cap) const {
    return DictionaryTokens(position) - LiveSlotsAt(position, slot_cap);
  }
  // The first position after this one at which a span of some layer ends or a growing part may take
  // a block. Tokens that end before it commit no memory and can be undone
  // (SequenceMixer::UndoExtents).
  int64_t BoundaryAfter(int64_t position) const;
  // Hash of every field's name, type, shape and offset; states fit only layouts of the same hash.
  uint64_t fingerprint() const { return fingerprint_; }

  // Alignment of a layer's fixed part and of its part of a block: twice a GPU's widest transaction.
  static constexpr size_t kPartAlignment = 256;

 private:
  struct Group {
    size_t offset = 0;       // from the session's base, page-aligned
    size_t block_bytes = 0;  // of all its layers
    size_t part_stride = 0;  // between runs of blocks (Growth::parts), page-aligned
    int64_t n_layers = 0;
    size_t bytes_for_slots(int64_t slots) const;
  };
  int64_t MostSlots(const kernels::Growth& growth, int64_t slot_cap, int part) const;
  // The fixed part, and slots(growth, part) slots in every run of blocks, each in units of bytes.
  std::vector<kernels::StateExtent> Extents(
      const std::function<int64_t(const kernels::Growth&, int part)>& slots, size_t unit) const;
  std::vector<kernels::StateExtent> ExtentsAt(int64_t position, int64_t slot_cap,
                                              size_t unit) const;
  void PlaceGroups();
  const kernels::Growth* capped() const;  // the first growth law with a cap

  std::vector<kernels::MixerState> mixers_;
  std::vector<kernels::LayerState> layers_;
  std::vector<kernels::Growth> growths_;
  std::vector<Group> groups_;  // by growth law
  std::vector<Image> images_;
  StateLimits limits_;
  size_t page_bytes_;
  size_t fixed_bytes_ = 0;  // of all layers, each aligned
  size_t virtual_bytes_ = 0;
  uint64_t fingerprint_ = 0;
};

}  // namespace ovq::model
