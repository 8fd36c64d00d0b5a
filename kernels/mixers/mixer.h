// What every sequence mixer offers: the state it keeps for a session, and one forward call.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/common/attrs.h"
#include "kernels/common/device.h"
#include "kernels/common/tensor.h"

namespace ovq {

// Slots (centroids or tokens) per block of a growing state.
inline constexpr int kBlockSlots = 64;

struct StateField {
  const char* name;
  DType dtype;
  Shape shape;
};

// Fields laid one after another, each 64-byte aligned.
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

// How the number of live slots follows from the position.
//   kNone       no growing part
//   kCentroids  n(cL), c = floor(position / chunk_len), n(t) = floor(t N / (t + N)): OVQ eq. 17
//   kTokens     one slot a token (full attention)
struct Growth {
  enum class Law : uint8_t { kNone, kCentroids, kTokens };
  Law law = Law::kNone;
  int chunk_len = 0;  // kCentroids only
  bool operator==(const Growth&) const = default;
};

// Eq. 17: n(t) = floor(t N / (t + N)), n(0) = 0; exact for every position and N < 2^31. As
// t N / (t + N) = N - N^2 / (t + N), 64 bits are enough.
constexpr int64_t CentroidsAt(int64_t t, int64_t slot_cap) {
  const auto n = static_cast<uint64_t>(slot_cap);
  const uint64_t sum = static_cast<uint64_t>(t) + n;
  return sum == 0 ? 0 : slot_cap - static_cast<int64_t>((n * n + sum - 1) / sum);
}

// Live slots of a growing part after `position` tokens.
int64_t LiveSlots(const Growth& growth, int64_t position, int64_t slot_cap);

// The state of one layer of one session. All bytes start as zero.
struct MixerState {
  StateFields fixed;  // once
  Growth growth;
  StateFields block;  // once per kBlockSlots slots
};

// Where one layer's state lies relative to a session's base pointer.
struct LayerState {
  size_t fixed_offset = 0;
  size_t blocks_offset = 0;  // block 0 of this layer
  size_t block_stride = 0;   // bytes from one block of this layer to the next

  std::byte* fixed(std::byte* session) const { return session + fixed_offset; }
  std::byte* block(std::byte* session, int64_t index) const {
    return session + blocks_offset + static_cast<size_t>(index) * block_stride;
  }
};

// Where a part of one layer's state lies relative to a session's base pointer, in bytes. Index: of
// a block, or of an element where the part has no blocks.
struct StatePlace {
  size_t offset = 0;
  size_t head_stride = 0;
  size_t index_stride = 0;

  constexpr std::byte* At(std::byte* session, int kv_head, int64_t index = 0) const {
    return session + offset + static_cast<size_t>(kv_head) * head_stride +
           static_cast<size_t>(index) * index_stride;
  }
};

// The arrays of a StepSeqs in the device's memory.
struct DeviceSeqs {
  const int32_t* row_begin = nullptr;
  const int64_t* start_pos = nullptr;
  const int32_t* slot_cap = nullptr;
  std::byte* const* state = nullptr;
  const int64_t* positions =
      nullptr;  // [n_rows] of every row: start_pos plus its place in its sequence
};

// Whose rows a step holds: rows of all sequences end to end. The spans are the host's; what a
// kernel on a device reads is in `device`. A step that is replayed (DeviceContext::Captured) is
// padded with sequences of one row whose state is null in both: nothing is done for them. Of a
// replayed step the host's spans hold the shape alone (n_seqs, one row each, the bounds).
struct StepSeqs {
  std::span<const int32_t> row_begin;  // [n_seqs + 1]; lengths 2, 3, 4 -> 0, 2, 5, 9
  std::span<const int64_t> start_pos;  // [n_seqs] tokens consumed before this step
  std::span<const int32_t> slot_cap;   // [n_seqs] the session's dictionary cap N
  std::span<std::byte* const> state;   // [n_seqs] session base pointers, committed to the end
  DeviceSeqs device = {};
  int64_t end_bound = 0;       // no row stands at this position or after it
  int32_t slot_cap_bound = 0;  // no cap is larger

  int n_seqs() const { return static_cast<int>(start_pos.size()); }
  int n_rows() const { return row_begin.empty() ? 0 : row_begin.back(); }
};

// The project's only abstract class. Immutable after creation; any thread may call const methods
// with a DeviceContext of its own.
class SequenceMixer {
 public:
  virtual ~SequenceMixer() = default;
  virtual const MixerState& state() const = 0;
  virtual size_t weight_bytes() const = 0;
  // y[n_rows, d_model] += mix(x[n_rows, d_model]); advances each sequence's state in place.
  // x in the compute dtype, y float32 (the residual stream).
  virtual void Forward(const StepSeqs& seqs, TensorView x, const LayerState& where,
                       DeviceContext& context, TensorView y) const = 0;
};

// Gives the tensor `model.layers.<layer>.<leaf>` after checking name, shape and dtype.
using WeightSource =
    std::function<absl::StatusOr<TensorView>(std::string_view leaf, const Shape& shape)>;

// What decides a mixer's state.
struct StateSpec {
  const Attrs& model;    // the scalar fields of config.json
  const Attrs& section;  // the mixer's own object of config.json ("ovq", "vq", ...)
  DType state_dtype;     // of keys and values in the session state: kF32 or kBF16
  Device device;
};

// What a mixer is made from.
struct MixerSpec {
  int layer;
  std::string_view type;  // its entry in layer_types
  StateSpec state;
  const WeightSource& weights;
  DType compute_dtype;  // of the matrix products: kF32 or kBF16
  DeviceContext& context;
};

using MixerFactory = absl::StatusOr<std::unique_ptr<SequenceMixer>> (*)(const MixerSpec&);
// The state() of the mixer that the factory would make, without its weights.
using StateFactory = absl::StatusOr<MixerState> (*)(const StateSpec&);

// One line of the registry.
struct MixerEntry {
  std::string_view layer_type;
  std::string_view section;  // key of its object in config.json, empty if it has none
  MixerFactory make;
  StateFactory state;
};
std::span<const MixerEntry> MixerRegistry();
const MixerEntry* FindMixer(std::string_view layer_type);  // null if unknown

}  // namespace ovq
