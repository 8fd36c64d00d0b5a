// What a mixer keeps for a session: fields of bytes, some once, some for every block of slots. The
// pool of session states sees nothing else of it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "base/saturating.h"
#include "kernels/common/state_memory.h"
#include "kernels/common/tensor.h"

namespace ovq {

// Slots (centroids, tokens, rows of a memory) per block of a growing part.
inline constexpr int kBlockSlots = 64;
// The slot caps that a config or a session may ask for.
inline constexpr int32_t kMinSlotCap = 2;
inline constexpr int32_t kMaxSlotCap = 1 << 24;
constexpr int64_t NumBlocks(int64_t slots) { return (slots + kBlockSlots - 1) / kBlockSlots; }

// What the numbers of a field may be, NaN never; by default what is finite. A state that comes from
// outside is held to it before a kernel sees it (state_check.h): whatever a kernel takes as an
// index, a bound of a loop or a size has its range here.
struct ValidRange {
  double least = std::numeric_limits<float>::lowest();
  double most = std::numeric_limits<float>::max();
  bool is_slot = false;  // also a live slot, or 0 if there is none
};

struct StateField {
  const char* name;
  DType dtype;
  Shape shape;
  ValidRange valid = {};
  // What a new session holds: shape's bytes, or null for zeros (a block's fields begin as zeros).
  std::shared_ptr<const std::vector<std::byte>> initial = nullptr;

  size_t bytes() const {
    size_t bytes = DTypeBytes(dtype);
    for (int i = 0; i < shape.rank(); ++i) {
      bytes = SaturatingMultiply(bytes, static_cast<size_t>(shape[i]));
    }
    return bytes;
  }
};

// Fields laid one after another, each 64-byte aligned; sizes end at the largest number.
class StateFields {
 public:
  StateFields() = default;
  explicit StateFields(std::vector<StateField> fields);
  const std::vector<StateField>& list() const { return fields_; }
  size_t offset(int field) const { return offsets_[field]; }
  size_t bytes() const { return bytes_; }

 private:
  std::vector<StateField> fields_;
  std::vector<size_t> offsets_;
  size_t bytes_ = 0;
};

// How the number of live slots of a growing part follows from a session's position and its slot
// cap. Every growing mixer reads that one number in its own law.
//
// A session's cap is what its layers have in the mean: each, or each head of one, has its share of
// it (config.json, ovq.shares), which is the cap that the law sees.
struct Growth {
  // Layers whose growth has the same name grow alike and share blocks; empty: no growing part.
  std::string name;
  // Slots live after `position` tokens by the head's own cap; never falls as either argument
  // rises, and 0 at 0.
  std::function<int64_t(int64_t position, int64_t own_cap)> live;
  // The number changes at multiples of this many tokens only, and never exceeds the layer's cap.
  // 0: a slot a token, without a cap.
  int64_t period = 0;
  // The cap of sessions that do not name one; 0 without a cap.
  int64_t default_slot_cap = 0;
  // One that all heads of the layer have, or one for each key/value head: then the law's blocks are
  // of one head, and each head has as many as its own cap asks for (LayerState::head_stride).
  std::vector<double> shares = {1};

  // This law with these shares; layers of unequal shares grow unalike, and shares of heads that are
  // all equal are the layer's.
  Growth WithShares(std::vector<double> slot_cap_shares) const;
  // What grows on its own: 1, or a part for each head.
  int parts() const { return static_cast<int>(shares.size()); }
  double head_share(int head) const { return shares[parts() == 1 ? 0 : head]; }
  // The cap of a part, or of any head: its share, rounded, from kMinSlotCap to kMaxSlotCap.
  int64_t HeadSlotCap(int64_t slot_cap, int head) const;
  int64_t LiveAt(int64_t position, int64_t slot_cap, int head) const {
    return live(position, capped() ? HeadSlotCap(slot_cap, head) : slot_cap);
  }
  // Of the part that has the most.
  int64_t MostLiveAt(int64_t position, int64_t slot_cap) const;

  bool exists() const { return !name.empty(); }
  bool capped() const { return period > 0; }
  bool operator==(const Growth& other) const { return name == other.name; }
};
// A slot a token.
Growth GrowsByToken();

struct LayerBytes;

// The state of one layer of one session.
struct MixerState {
  StateFields fixed;  // once
  Growth growth;
  StateFields block;  // once per kBlockSlots slots
  // Of the block's fields each of so many heads has as many, one head after another.
  int block_heads = 1;
  size_t head_bytes() const { return block.bytes() / static_cast<size_t>(block_heads); }
  int fields_per_head() const { return static_cast<int>(block.list().size()) / block_heads; }
  int FieldHead(int block_field) const { return block_field / fields_per_head(); }
  // How a state goes back: tokens that follow one another within a span of this many positions
  // (from multiples of it) only add to the state, and what the last of them overwrites is known
  // (SequenceMixer::UndoExtents). 0: every token rewrites the state, which comes back from a copy
  // and the tokens since then.
  int64_t span = 0;
  // What kernels rely on beyond the ranges of the fields, which it comes after: DataLoss names the
  // field. Null: nothing.
  std::function<absl::Status(const LayerBytes&)> check = nullptr;
  // What errors call it: the layer's type.
  std::string name = {};
};

// Where one layer's state lies relative to a session's base pointer.
struct LayerState {
  size_t fixed_offset = 0;
  size_t blocks_offset = 0;  // block 0 of this layer
  size_t block_stride = 0;   // bytes from one block of this layer to the next
  // Bytes from one head's part of a block to the next one's: within the block, or, of heads that
  // have shares of their own, from one run of blocks to the next. So a kernel finds a head's blocks
  // in the same way in both.
  size_t head_stride = 0;
  int growth = -1;  // its law among those of the layout; -1: no growing part

  // From the session's base pointer: of block 0 of a part (Growth::parts), of a block's field
  // (MixerState::block).
  size_t PartOffset(int part) const {
    return blocks_offset + static_cast<size_t>(part) * head_stride;
  }
  size_t FieldOffset(const MixerState& state, int field, int64_t block) const;
  // Of the blocks [first, end) of a part (Growth::parts).
  std::vector<StateExtent> BlockExtents(const MixerState& state, int part, int64_t first,
                                        int64_t end) const;
};

// Where a part of one layer's state lies relative to a session's base pointer, in bytes. Index: of
// a block, or of an element where the part has no blocks.
struct StatePlace {
  size_t offset = 0;
  size_t head_stride = 0;
  size_t index_stride = 0;

  constexpr size_t ByteOffset(int head, int64_t index) const {
    return offset + static_cast<size_t>(head) * head_stride +
           static_cast<size_t>(index) * index_stride;
  }
  template <class T = std::byte>
  constexpr T* At(std::byte* session, int head, int64_t index = 0) const {
    return reinterpret_cast<T*>(session + ByteOffset(head, index));
  }
};

}  // namespace ovq
