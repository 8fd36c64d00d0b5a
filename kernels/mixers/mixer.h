// What every sequence mixer offers: the state it keeps for a session, and one forward call.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/common/attrs.h"
#include "kernels/common/device.h"
#include "kernels/common/tensor.h"
#include "kernels/mixers/batch_sequences.h"
#include "kernels/mixers/state.h"
#include "kernels/mixers/weight_reader.h"

namespace ovq {

// What a layer sees of a batch.
struct LayerArgs {
  DeviceContext& context;
  const BatchSequences& seqs;
  const LayerState& where;
  // From and for other layers; Put before the layer opens a scratch scope of its own.
  BatchTensors& tensors;
  bool adds = true;  // to y; false: y is written
};

// Tokens [begin, end) of a session with this slot cap, within one span (MixerState::span).
struct TokenRange {
  int64_t begin, end;
  int64_t slot_cap;
};

// The project's only abstract class. Immutable after creation; any thread may call const methods
// with a DeviceContext of its own.
//
// The state after T tokens is a function of the T tokens, to the byte, however they were split into
// batches and whatever else was in them. A mixer keeps that promise in one of two ways: with a span
// (MixerState::span) it commits at absolute multiples of it, rows in between attend to what is
// pending; without one, it runs the same recurrence token by token in prefill and in decode.
class SequenceMixer {
 public:
  virtual ~SequenceMixer() = default;
  virtual const MixerState& state() const = 0;
  virtual size_t weight_bytes() const = 0;
  // y[n_tokens, d_model] += mix(x[n_tokens, d_model]), or = (LayerArgs::adds); advances each
  // sequence's state in place. x in the compute dtype, y float32 (the residual stream).
  virtual void Forward(const LayerArgs& args, TensorView x, TensorView y) const = 0;
  // The bytes of this layer's state that these tokens may change, each once: putting them
  // back undoes the tokens.
  virtual std::vector<StateExtent> UndoExtents(const LayerState& where,
                                               const TokenRange& tokens) const = 0;
  // Whether each of these tokens changes bytes of its own: putting back what UndoExtents names of
  // the last of them then undoes these alone, as if only the others had been there. False: nothing
  // but all of them can be undone.
  virtual bool CanUndoSuffix(const TokenRange&) const { return false; }
};

// What decides a mixer's state.
struct StateSpec {
  const Attrs& model;    // the scalar fields of config.json
  const Attrs& section;  // the mixer's own object of config.json ("ovq", "vq", ...)
  int64_t d_model;       // hidden_size: the width of x and y
  // Of keys and values where the mixer can keep them so: kF32, kBF16 or kI8.
  DType kv_dtype;
  Device device;
  // Of a session's slot cap, of a layer whose slots are capped (Growth::shares).
  std::vector<double> slot_shares = {1};
};

// What a mixer is made from.
struct MixerSpec {
  int layer;
  StateSpec state;
  WeightReader& weights;     // of this layer; a factory returns its status
  DType compute_dtype;       // of the matrix products: kF32 or kBF16
  float residual_scale = 1;  // of what Forward adds to y
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
