// RecurrentMixer: the frame around every recurrence whose state each token rewrites. With a layer's
// description (RecurrentLayer) and x, a token's input [d_model]:
//   p = W_in x (+ b_in)                    all projections, as one product
//   c = silu(conv(p))                      of the channels that are convolved (short_conv.h)
//   q = unit(q) query_scale, k = unit(k)   the first heads of c
//   decay and sigmoids of p                one number a head each (gates.h)
//   y = Advance(p, c, gates)               the recurrence, which rewrites the state
//   o = W_out (rms(y) g(z)) (+ b_out)      z in p
// A layer gives its description and Advance; everything else is here.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "base/status_macros.h"
#include "kernels/mixers/mixer.h"
#include "kernels/mixers/recurrent/gates.h"
#include "kernels/mixers/recurrent/short_conv.h"
#include "kernels/ops/ops.h"

namespace ovq::kernels {

// The rows of all parts.
inline int64_t TotalRows(std::span<const WeightPart> parts) {
  int64_t rows = 0;
  for (const WeightPart& part : parts) rows += part.rows;
  return rows;
}

// A layer, as the frame needs to know it. Channels are counted in p.
struct RecurrentLayer {
  // Filter f, counted over all tensors, reads channel first + f mod width. size 1: c = silu(p), the
  // tensors do not exist.
  struct Convolution {
    std::vector<WeightPart> filters;  // leaves without ".weight" and ".bias"
    int64_t first = 0;
    int64_t width = 0;
    int size = 1;
    bool has_bias = false;

    int64_t n_filters() const { return TotalRows(filters); }
  };
  // c begins with n_heads queries and as many keys, head_dim elements each. n_heads 0: none are
  // scaled.
  struct UnitHeads {
    int n_heads = 0;
    int head_dim = 0;
    float query_scale = 1;
  };
  // Channels of one gate, n_heads of them.
  struct DecayInput {
    int64_t channel;
    float min_dt = 0;
    float max_dt = std::numeric_limits<float>::infinity();
  };
  struct SigmoidInput {
    int64_t channel;
    std::string_view bias = {};  // leaf of [n_heads]; empty: 0
    float scale = 1;
  };
  struct Norm {
    std::string_view weight = {};  // leaf; empty: no norm
    int n_groups = 1;              // of equal width
    bool shares_weight = true;     // [width of a group], else [n_groups, width of a group]
    float eps = 0;
  };
  struct OutputGate {
    GateKind kind = GateKind::kNone;
    int64_t channel = 0;  // of z
    bool before_norm = false;
  };

  int n_heads = 0;                               // of the state, and numbers of a gate
  std::vector<StateField> fields;                // the recurrence's, [n_heads, ...]
  std::vector<WeightPart> in;                    // W_in [rows, d_model], from above
  WeightPart out;                                // W_out [d_model, rows]
  std::string_view in_bias = {}, out_bias = {};  // leaves of vectors; empty: none
  Convolution conv;
  UnitHeads unit_heads = {};
  std::optional<DecayInput> decay = {};
  std::vector<SigmoidInput> sigmoids = {};
  Norm norm;
  OutputGate gate = {};

  // The recurrence's fields, then, with a convolution, its newest inputs.
  MixerState State() const;
};

// One batch's inputs of a recurrence, and the place of its output; all float.
struct RecurrentInputs {
  const MixerState& state;
  const float* projected;  // p [n_tokens, rows of W_in], tokens projected_stride apart
  int64_t projected_stride;
  float* convolved;  // c [n_tokens, n_filters], tokens convolved_stride apart
  int64_t convolved_stride;
  std::vector<const float*> sigmoids = {};     // [n_tokens, n_heads] each
  const float* decay = nullptr;                // [n_tokens, n_heads]; null without DecayInput
  const float *dt = nullptr, *rate = nullptr;  // decay = e^(rate dt); rate [n_heads]
  float* y;                                    // [n_tokens, rows of W_out], packed
};

// The weights of a layer's frame.
class RecurrentFrame {
 public:
  // Its errors are spec.weights'.
  RecurrentFrame(const MixerSpec& spec, RecurrentLayer layer);

  const MixerState& state() const { return state_; }
  size_t bytes() const { return in_.bytes() + out_.bytes(); }
  // Everything before the recurrence; the returned buffers live as long as scope.
  RecurrentInputs Project(const LayerArgs& args, TensorView x, ScratchScope& scope) const;
  // Everything behind it. y: see SequenceMixer::Forward.
  void Output(const LayerArgs& args, const RecurrentInputs& inputs, TensorView y) const;

 private:
  void ConvolveInputs(const LayerArgs& args, const RecurrentInputs& inputs) const;
  void ComputeGates(const LayerArgs& args, RecurrentInputs& inputs, ScratchScope& scope) const;

  RecurrentLayer layer_;
  MixerState state_;
  DType compute_;
  Linear in_, out_;
  ShortConvFilters conv_;
  // float: in_bias_ [in_.out()] and out_bias_ [d_model], or empty; query_scale_ [unit heads], all
  // equal; rate_, dt_bias_ and sigmoid_biases_ [n_heads]; norm_weight_ as Norm says.
  Buffer in_bias_, out_bias_, query_scale_, rate_, dt_bias_, norm_weight_;
  std::vector<Buffer> sigmoid_biases_;
};

// The base of a recurrence inside a RecurrentMixer. A derived T has
//   Config: its config
//   explicit T(const Config&)
//   RecurrentLayer Describe() const: of a config without errors; the strings are literals
//   void Advance(const LayerArgs&, const RecurrentInputs&) const: advances the states and fills y
struct Recurrence {
  void Load(const MixerSpec&) {}  // loads further weights; errors go to spec.weights
};

template <class T>
class RecurrentMixer final : public SequenceMixer {
 public:
  RecurrentMixer(T recurrence, RecurrentFrame frame)
      : recurrence_(std::move(recurrence)), frame_(std::move(frame)) {}

  const MixerState& state() const override { return frame_.state(); }
  size_t weight_bytes() const override { return frame_.bytes(); }
  void Forward(const LayerArgs& args, TensorView x, TensorView y) const override {
    ScratchScope scope(args.context);
    const RecurrentInputs inputs = frame_.Project(args, x, scope);
    recurrence_.Advance(args, inputs);
    frame_.Output(args, inputs, y);
  }
  std::vector<StateExtent> UndoExtents(const LayerState& where, const TokenRange&) const override {
    return {{where.fixed_offset, state().fixed.bytes()}};
  }

 private:
  T recurrence_;
  RecurrentFrame frame_;
};

// The two functions of a registry entry.
template <class T>
absl::StatusOr<MixerState> RecurrentState(const StateSpec& spec) {
  ASSIGN_OR_RETURN(const typename T::Config config, CheckedConfig<typename T::Config>(spec));
  return T(config).Describe().State();
}
template <class T>
absl::StatusOr<std::unique_ptr<SequenceMixer>> MakeRecurrent(const MixerSpec& spec) {
  ASSIGN_OR_RETURN(const typename T::Config config, CheckedConfig<typename T::Config>(spec.state));
  T recurrence(config);
  recurrence.Load(spec);
  RecurrentFrame frame(spec, recurrence.Describe());
  if (!spec.weights.status().ok()) return spec.weights.status();
  return std::make_unique<RecurrentMixer<T>>(std::move(recurrence), std::move(frame));
}

}  // namespace ovq::kernels
