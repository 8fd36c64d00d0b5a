// RecurrentMixer: the base of every recurrence whose state each token rewrites. With a layer's
// description (RecurrentLayer) and x, a token's input [d_model]:
//   p = W_in x (+ b_in)                    all projections, as one product; with int8 weights those
//                                          to the gates of the recurrence are another one, which
//                                          stays as computed: their errors would go on in the state
//   p_i = W_up (W_down x) (+ b_up)         those of low rank, each behind p
//   c = silu(conv(p))                      of the channels that are convolved (short_conv.h)
//   q = unit(q) query_scale, k = unit(k)   the first heads of c
//   decay and sigmoids of p                one number a head each (gates.h), or a decay for each of
//                                          its key channels
//   y = Advance(p, c, gates)               the recurrence, which rewrites the state
//   o = W_out (rms(y) g(z)) (+ b_out)      z in p
// A layer gives its description and Advance; everything else is here. Its state has the
// recurrence's fields, then, with a convolution, the newest inputs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "kernels/mixers/mixer.h"
#include "kernels/mixers/recurrent/gates.h"
#include "kernels/mixers/recurrent/short_conv.h"
#include "kernels/ops/ops.h"

namespace ovq::kernels {

// A layer, as the frame needs to know it. Channels are counted in p, those of gates from its last
// rows on, gates_in.
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
  // A projection of rank W_down.rows to W_up.rows channels, with a bias where `bias` names one.
  struct LowRank {
    WeightPart down, up;
    std::string_view bias = {};
    bool is_of_gate = false;  // of the recurrence: stays as computed with int8 weights
  };
  // Channels of one gate: n_heads of them from `channel` of gates_in on, or those of
  // low_rank[projection].
  struct DecayInput {
    int64_t channel = 0;
    int projection = -1;
    int n_channels = 1;     // decays of a head
    float lower_bound = 0;  // DecayGate
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
    int64_t channel = 0;  // of z in p, or z is low_rank[projection]
    int projection = -1;
    bool before_norm = false;
  };

  int n_heads = 0;                               // of the state, and numbers of a gate
  std::vector<StateField> fields;                // the recurrence's, [n_heads, ...]
  std::vector<WeightPart> in;                    // W_in [rows, d_model], from above,
  std::vector<WeightPart> gates_in = {};         // and its last rows
  WeightPart out;                                // W_out [d_model, rows]
  std::string_view in_bias = {}, out_bias = {};  // leaves of vectors; empty: none
  std::vector<LowRank> low_rank = {};
  Convolution conv;
  UnitHeads unit_heads = {};
  std::optional<DecayInput> decay = {};
  std::vector<SigmoidInput> sigmoids = {};
  Norm norm;
  OutputGate gate = {};
};

// One batch's inputs of a recurrence, and the place of its output; all float.
struct RecurrentInputs {
  const float* projected;  // p [n_tokens, rows of W_in], tokens projected_stride apart
  int64_t projected_stride;
  const float* gates;  // the channels of gates_in, tokens gates_stride apart
  int64_t gates_stride;
  std::vector<TensorView> low_rank = {};  // [n_tokens, rows of W_up] each
  float* convolved;                       // c [n_tokens, n_filters], tokens convolved_stride apart
  int64_t convolved_stride;
  std::vector<const float*> sigmoids = {};  // [n_tokens, n_heads] each
  // [n_tokens, n_heads, n_channels]; null without DecayInput. decay = e^(rate dt) without a lower
  // bound; rate [n_heads, n_channels].
  const float *decay = nullptr, *dt = nullptr, *rate = nullptr;
  float* y;  // [n_tokens, rows of W_out], packed
};

// A derived class has a type Config and a constructor of StateSpec and it.
class RecurrentMixer : public SequenceMixer {
 public:
  void Load(const MixerSpec& spec) final;
  void Forward(const LayerArgs& args, const ProductRows& x, TensorView y) const final;
  std::vector<StateExtent> UndoExtents(const LayerState& where, const TokenRange&) const final {
    return {{where.fixed_offset, state_.fixed.bytes()}};
  }

 protected:
  // The description's strings are literals.
  explicit RecurrentMixer(RecurrentLayer layer);

  // Loads further weights; errors go to spec.weights.
  virtual void LoadOwn(const MixerSpec&) {}
  // Advances the states and fills inputs.y.
  virtual void Advance(const LayerArgs& args, const RecurrentInputs& inputs) const = 0;
  // The initial contents of the recurrence's field, where they are among the weights.
  void SetInitial(int field, std::shared_ptr<const std::vector<std::byte>> bytes);

 private:
  // Everything before the recurrence; the returned buffers live as long as scope.
  RecurrentInputs Project(const LayerArgs& args, const ProductRows& x, ScratchScope& scope) const;
  TensorView ProjectLowRank(const LayerArgs& args, size_t i, const ProductRows& x,
                            ScratchScope& scope) const;
  void ConvolveInputs(const LayerArgs& args, const RecurrentInputs& inputs) const;
  void ComputeGates(const LayerArgs& args, RecurrentInputs& inputs, ScratchScope& scope) const;
  // Everything behind it.
  void Output(const LayerArgs& args, const RecurrentInputs& inputs, TensorView y) const;

  RecurrentLayer layer_;
  DType compute_ = DType::kF32;
  Linear in_, gates_in_, out_;  // gates_in_ with int8 weights alone: else it is in in_
  struct LowRankProducts {
    Linear down, up;
    Buffer bias;  // float [up.out()], or empty
  };
  std::vector<LowRankProducts> low_rank_;
  ShortConvFilters conv_;
  // float: in_bias_ [in_.out()] and out_bias_ [d_model], or empty; query_scale_ [unit heads], all
  // equal; rate_ and dt_bias_ [decays]; sigmoid_biases_ [n_heads]; norm_weight_ as Norm says.
  Buffer in_bias_, out_bias_, query_scale_, rate_, dt_bias_, norm_weight_;
  std::vector<Buffer> sigmoid_biases_;
};

}  // namespace ovq::kernels
