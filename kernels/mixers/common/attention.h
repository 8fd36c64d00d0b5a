// AttentionMixer: the projections, norms, score scale, RoPE and output gate around every
// softmax-type mixer's attention.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/status_macros.h"
#include "kernels/mixers/common/token_shift.h"
#include "kernels/mixers/mixer.h"
#include "kernels/ops/ops.h"

namespace ovq::kernels {

// Query head h reads key/value head h / group().
struct AttentionShape {
  int n_heads = 0;
  int n_kv_heads = 0;
  int head_dim = 0;
  int value_head_dim = 0;
  constexpr int group() const { return n_heads / n_kv_heads; }
};

// The processing of queries, keys and values between their projections and a mixer's kernel, in
// this order. The defaults are those of the OVQ paper (appendix 8.2).
struct AttentionInput {
  // Value residual: v moves towards the values v' that layer `value_layer` projects from the
  // embedding.
  //   gated  v += (v' - v) sigmoid(bias + up(down(x))), the gate of rank gate_rank
  //   linear v += (v' - v) lambda
  // kGatedAfterShift: as gated, but applied to v after its token shift, with x shifted like v.
  enum class ValueResidual : uint8_t { kNone, kGated, kLinear, kGatedAfterShift };
  ValueResidual value_residual = ValueResidual::kNone;
  int value_layer = -1;
  int64_t gate_rank = 0;
  bool bias = false;         // projections of q, k, v and the output have biases
  bool token_shift = false;  // shifts q, k and v after the value residual; x_{-1} = x_0
  // Factor of q: beta for kUnit, beta sqrt(d) for kL2, 1 / sqrt(d) for kLayer, score_scale for
  // kNone and kRms.
  HeadNorm norm = HeadNorm::kUnit;
  std::optional<float> score_scale = {};  // empty in a config: 1 / sqrt(d)
  bool norms_all_heads = false;  // kRms over all heads of a token at once, weight [heads d]
  float norm_eps = 1e-6f;        // of kRms
  NormWeightKind norm_weight = NormWeightKind::kPlain;  // of kRms
  RopeSpec rope;                                        // dims 0: no position encoding
  // The attention's output is multiplied by sigmoid(g_proj x (+ bias)) before o_proj.
  bool gate = false, gate_bias = false;

  constexpr bool shifts_gate() const { return value_residual == ValueResidual::kGatedAfterShift; }
};

// RopeSpec::dims in a config that leaves them open: all channels of a head.
inline constexpr int kAllChannels = -1;

// The part of an attention layer's config that is before its kernel and after it.
struct AttentionConfig {
  AttentionShape shape;  // n_kv_heads 0 in a config: n_heads; value_head_dim 0: head_dim
  AttentionInput input;
};
// Reads num_attention_heads, num_key_value_heads, head_dim, value_head_dim, qk_norm, qk_norm_eps,
// qk_norm_weight, score_scale, rope, rope_theta, rope_dims, rope_rounds_to_bfloat16, token_shift,
// attention_bias, output_gate, output_gate_bias, value_residual, value_residual_layer and
// value_gate_rank (docs/model-format.md).
void ReadAttention(const FieldReaders& from, AttentionConfig& config);

// The name, among a batch's tensors, of the normed embedding [n_tokens, d_model] in the compute
// dtype, from which the first values of `layer` are projected.
std::string FirstValuesInput(int layer);

// Offsets from a session's base of the newest token's inputs to a layer's token shifts: q, k and v
// before their shift, and x. 0 without the shift.
struct ShiftPlaces {
  size_t qkv = 0, x = 0;
};

// One batch's queries, keys and values, ready for a kernel. Tokens are `stride` floats apart.
struct AttentionTensors {
  const float* q;  // [n_tokens, n_heads, head_dim], processed as AttentionInput says
  const float* k;  // [n_tokens, n_kv_heads, head_dim]
                   // both bfloat16 values if that is the compute dtype
  const float* v;  // [n_tokens, n_kv_heads, value_head_dim]
  int64_t stride;
  void* out;  // [n_tokens, n_heads, value_head_dim], packed
  DType out_dtype;
  TensorView x = {};  // [n_tokens, d_model], the layer's input in the compute dtype
  const float* gate =
      nullptr;  // [n_tokens, n_heads, value_head_dim], tokens `stride` apart; null without a gate
};

// q_proj, k_proj, v_proj, g_proj and o_proj [out, in] of one layer, and the weights of its
// AttentionInput.
class AttentionProjection {
 public:
  // Its errors are spec.weights'.
  AttentionProjection(const MixerSpec& spec, const AttentionShape& shape,
                      const AttentionInput& input);

  // Puts this layer's first values among the batch's tensors if other layers mix them in.
  void PublishValues(const LayerArgs& args) const;
  // Projects x [n_tokens, d_model]; the returned buffers live as long as scope.
  AttentionTensors Project(const LayerArgs& args, TensorView x, const ShiftPlaces& newest,
                           ScratchScope& scope) const;
  // y[n_tokens, d_model] += residual_scale o_proj(tokens.out times its gate), or =
  // (LayerArgs::adds).
  void Output(const LayerArgs& args, const AttentionTensors& tokens, TensorView y) const;
  size_t bytes() const;
  // Width of the stored token of the shift of q, k and v.
  static int64_t ShiftWidth(const AttentionShape& shape);

 private:
  using ValueResidual = AttentionInput::ValueResidual;

  void LoadBiases(const MixerSpec& spec);
  void LoadNorms(const MixerSpec& spec);
  void LoadValueResidual(const MixerSpec& spec, int64_t v_width);
  TensorView Shift(const LayerArgs& args, TensorView x, const Buffer& mix, size_t newest,
                   ScratchScope& scope) const;
  void MixValues(const LayerArgs& args, TensorView x, float* v, int64_t stride) const;
  // Norms, score scale, RoPE and rounding of queries and keys, in place.
  void Prepare(const LayerArgs& args, float* q, float* k, int64_t stride) const;

  AttentionShape shape_;
  AttentionInput input_;
  DType compute_;
  Linear qkv_;  // stacked: q, k, v and, with a gate, g
  Linear out_;
  Buffer qkv_bias_, out_bias_;    // [qkv_.out()] and [d_model] float; empty without biases
  Linear first_values_;           // v_proj again, in a layer that publishes first values
  Linear gate_down_, gate_up_;    // float32: [rank, d_model], [v, rank]
  Buffer gate_bias_;              // [v] float
  Buffer gate_shift_;             // [d_model] float, token shift of the gate's x
  float value_share_ = 0;         // lambda
  Buffer shift_;                  // [q + k + v] float
  Buffer beta_;                   // [n_heads] float
  Buffer query_norm_, key_norm_;  // kLayer: weight and bias [2][head_dim] float; kRms: weight
  std::optional<RopeTable> rope_;
};

// The base of the attention inside an AttentionMixer, with defaults for its optional parts. A
// derived T has
//   Config: its config, derived from AttentionConfig
//   T(const StateSpec&, const Config&)
//   void Attend(const LayerArgs&, const AttentionTensors&) const: fills tokens.out and advances the
//       states
//   std::vector<StateExtent> UndoExtents(...) const: see SequenceMixer
struct Attention {
  AttentionShape shape;
  AttentionInput input = {};
  MixerState layout = {};

  // The number and bytes of the attention's own fixed fields, which precede those of token shifts.
  int own_fields() const {
    return static_cast<int>(layout.fixed.list().size()) - (input.token_shift ? 1 : 0) -
           (input.shifts_gate() ? 1 : 0);
  }
  size_t own_fixed_bytes() const {
    const bool all = own_fields() == static_cast<int>(layout.fixed.list().size());
    return all ? layout.fixed.bytes() : layout.fixed.offset(own_fields());
  }

  // SequenceMixer::CanUndoSuffix for tokens within a span that do not end it.
  bool CanUndoSuffix(const TokenRange&) const { return true; }

  void Load(const MixerSpec&) {}  // loads further weights; errors go to spec.weights
  size_t weight_bytes() const { return 0; }
};

// Prepares a device for an attention before its first batch. Its errors are spec.weights'.
void PrepareAttention(const MixerSpec& spec, const AttentionShape& shape);

template <class T>
class AttentionMixer final : public SequenceMixer {
 public:
  AttentionMixer(T attention, AttentionProjection projection)
      : attention_(std::move(attention)), projection_(std::move(projection)) {}

  const MixerState& state() const override { return attention_.layout; }
  size_t weight_bytes() const override { return projection_.bytes() + attention_.weight_bytes(); }
  void Forward(const LayerArgs& args, TensorView x, TensorView y) const override {
    projection_.PublishValues(args);
    ScratchScope scope(args.context);
    const AttentionTensors tokens = projection_.Project(args, x, Newest(args.where), scope);
    attention_.Attend(args, tokens);
    projection_.Output(args, tokens, y);
  }
  std::vector<StateExtent> UndoExtents(const LayerState& where,
                                       const TokenRange& tokens) const override {
    std::vector<StateExtent> extents = attention_.UndoExtents(where, tokens);
    const StateFields& fixed = attention_.layout.fixed;
    const int n_fields = static_cast<int>(fixed.list().size());
    for (int i = attention_.own_fields(); i < n_fields; ++i) {
      extents.push_back({where.fixed_offset + fixed.offset(i), fixed.list()[i].bytes()});
    }
    return extents;
  }
  // False with a token shift: every token overwrites the stored one.
  bool CanUndoSuffix(const TokenRange& tokens) const override {
    const MixerState& state = attention_.layout;
    return attention_.own_fields() == static_cast<int>(state.fixed.list().size()) &&
           tokens.end % state.span != 0 && attention_.CanUndoSuffix(tokens);
  }

 private:
  ShiftPlaces Newest(const LayerState& where) const {
    const StateFields& fixed = attention_.layout.fixed;
    const int last = static_cast<int>(fixed.list().size()) - 1;
    ShiftPlaces newest;
    if (attention_.input.token_shift) {
      newest.qkv = where.fixed_offset + fixed.offset(attention_.own_fields());
    }
    if (attention_.input.shifts_gate()) newest.x = where.fixed_offset + fixed.offset(last);
    return newest;
  }

  T attention_;
  AttentionProjection projection_;
};

template <class T>
absl::StatusOr<T> BuildAttention(const StateSpec& spec) {
  ASSIGN_OR_RETURN(const typename T::Config config, CheckedConfig<typename T::Config>(spec));
  T attention(spec, config);
  attention.input = config.input;
  std::vector<StateField> fields = attention.layout.fixed.list();
  if (attention.input.token_shift) {
    fields.push_back(TokenShiftField(AttentionProjection::ShiftWidth(attention.shape)));
  }
  if (attention.input.shifts_gate()) fields.push_back(TokenShiftField(spec.d_model, "newest_x"));
  attention.layout.fixed = StateFields(std::move(fields));
  return attention;
}

// The state and factory functions of a MixerEntry.
template <class T>
absl::StatusOr<MixerState> AttentionState(const StateSpec& spec) {
  ASSIGN_OR_RETURN(const T attention, BuildAttention<T>(spec));
  return attention.layout;
}
template <class T>
absl::StatusOr<std::unique_ptr<SequenceMixer>> MakeAttention(const MixerSpec& spec) {
  ASSIGN_OR_RETURN(T attention, BuildAttention<T>(spec.state));
  attention.Load(spec);
  PrepareAttention(spec, attention.shape);
  AttentionProjection projection(spec, attention.shape, attention.input);
  if (!spec.weights.status().ok()) return spec.weights.status();
  return std::make_unique<AttentionMixer<T>>(std::move(attention), std::move(projection));
}

}  // namespace ovq::kernels
