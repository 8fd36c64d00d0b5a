// MixerState: what a mixer keeps for a session, as named fields of bytes, some once and some once
// per block of slots. The pool of session states sees nothing else of a mixer.
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

namespace ovq::kernels {

// Slots per block of a growing part.
inline constexpr int kBlockSlots = 64;
// The smallest and largest slot cap that a config or a session may ask for.
inline constexpr int32_t kMinSlotCap = 2;
inline constexpr int32_t kMaxSlotCap = 1 << 24;
constexpr int64_t NumBlocks(int64_t slots) { return (slots + kBlockSlots - 1) / kBlockSlots; }

// The valid numbers of a field; never NaN. By default all finite ones. A state that comes from
// outside is checked against it before a kernel sees it (state_check.h): whatever a kernel uses as
// an index, a loop bound or a size has its range here.
struct ValidRange {
  double least = std::numeric_limits<float>::lowest();
  double most = std::numeric_limits<float>::max();
  bool is_slot = false;  // a live slot instead; 0 if there is none
};

struct StateField {
  const char* name;
  DType dtype;
  Shape shape;
  ValidRange valid = {};
  // Contents in a new session: `bytes()` bytes, or null for zeros. A block's fields begin as zeros.
  std::shared_ptr<const std::vector<std::byte>> initial = nullptr;

  size_t bytes() const {
    size_t bytes = DTypeBytes(dtype);
    for (int i = 0; i < shape.rank(); ++i) {
      bytes = SaturatingMultiply(bytes, static_cast<size_t>(shape[i]));
    }
    return bytes;
  }
};

// Fields laid out one after another, each 64-byte aligned. Sizes saturate.
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

// A growth law: the number of live slots of a growing part as a function of a session's position
// and its slot cap. Every growing mixer has its own law and derives everything from this number.
//
// A session's slot cap is the mean over its layers. Each layer, or each head of one, has a share of
// it (config.json, ovq.shares); its own cap is what the law sees.
struct Growth {
  // Layers whose laws have the same name and shares grow alike and share blocks. Empty: no growing
  // part.
  std::string name;
  // Slots live after `position` tokens under the head's own cap. Never falls as either argument
  // rises; 0 at position 0.
  std::function<int64_t(int64_t position, int64_t own_cap)> live;
  // The number changes only at multiples of this many tokens and never exceeds the cap. 0: one slot
  // a token, without a cap.
  int64_t period = 0;
  // The cap of sessions that name none; 0 for laws without a cap.
  int64_t default_slot_cap = 0;
  // One share for all heads of the layer, or one for each key/value head. In the latter case a
  // block of this law belongs to one head, and each head has as many blocks as its own cap asks for
  // (LayerState::head_stride).
  std::vector<double> shares = {1};

  // This law with these shares. Layers with different shares have different laws; equal shares of
  // all heads become one share of the layer.
  Growth WithShares(std::vector<double> slot_cap_shares) const;
  // The number of parts that grow independently: 1, or one for each head.
  int parts() const { return static_cast<int>(shares.size()); }
  double head_share(int head) const { return shares[parts() == 1 ? 0 : head]; }
  // A head's own cap: slot_cap times its share, rounded, clamped to [kMinSlotCap, kMaxSlotCap].
  int64_t HeadSlotCap(int64_t slot_cap, int head) const;
  int64_t LiveAt(int64_t position, int64_t slot_cap, int head) const {
    return live(position, capped() ? HeadSlotCap(slot_cap, head) : slot_cap);
  }
  // The largest LiveAt of all parts.
  int64_t MostLiveAt(int64_t position, int64_t slot_cap) const;

  bool exists() const { return !name.empty(); }
  bool capped() const { return period > 0; }
  // A name has six digits of a share, too few to tell any two shares apart.
  bool operator==(const Growth& other) const {
    return name == other.name && shares == other.shares;
  }
};
// The law of one slot per token, without a cap.
Growth GrowsByToken();

struct LayerBytes;

// The state of one layer of one session.
struct MixerState {
  StateFields fixed;  // once
  Growth growth;
  StateFields block;  // once per kBlockSlots slots of the growing part
  // Block fields are grouped by head: `block_heads` groups with the same number of fields.
  int block_heads = 1;
  size_t head_bytes() const { return block.bytes() / static_cast<size_t>(block_heads); }
  int fields_per_head() const { return static_cast<int>(block.list().size()) / block_heads; }
  int FieldHead(int block_field) const { return block_field / fields_per_head(); }
  // The length of spans, which decides how tokens are undone. Tokens that follow one another within
  // a span of this many positions (from multiples of it) only add to the state, and the bytes that
  // the last of them overwrite are known (SequenceMixer::UndoExtents). 0: every token rewrites the
  // state, so undoing takes a copy of the state and the tokens since then.
  int64_t span = 0;
  // Checks what kernels rely on beyond the fields' ranges, after those have passed: DataLoss names
  // the field. May be null.
  std::function<absl::Status(const LayerBytes&)> check = nullptr;
  // The layer's type, for error messages.
  std::string name = {};
};

// The place of one field of a layer's state relative to a session's base pointer, in bytes. The
// index counts blocks, or elements in fields without blocks.
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

// The place of one layer's state relative to a session's base pointer, in bytes.
struct LayerState {
  size_t fixed_offset = 0;
  size_t blocks_offset = 0;  // block 0 of this layer
  size_t block_stride = 0;   // bytes from one block of this layer to the next
  // Bytes from one head's part of a block to the next head's: within a block, or, where heads have
  // shares of their own, from one run of blocks to the next. Kernels thus find a head's blocks the
  // same way in both cases.
  size_t head_stride = 0;
  int growth = -1;  // index of its law in the layout; -1: no growing part

  // Offsets from the session's base pointer: of block 0 of a part (Growth::parts), and of a block's
  // field (MixerState::block).
  size_t PartOffset(int part) const {
    return blocks_offset + static_cast<size_t>(part) * head_stride;
  }
  size_t FieldOffset(const MixerState& state, int field, int64_t block) const;
  // The place of a fixed field of shape [heads, indices, ...].
  StatePlace FixedPlace(const MixerState& state, int field) const;
  // The place of a block's field of head 0, which the other heads have as well.
  StatePlace BlockPlace(const MixerState& state, int field) const {
    return {FieldOffset(state, field, 0), head_stride, block_stride};
  }
  // The extents of blocks [first, end) of a part (Growth::parts).
  std::vector<StateExtent> BlockExtents(const MixerState& state, int part, int64_t first,
                                        int64_t end) const;
};

}  // namespace ovq::kernels
