// Attention: the base of the softmax-type mixers, with the projections, norms, score scale, RoPE
// and output gate around their kernels.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "kernels/mixers/common/attend.h"
#include "kernels/mixers/common/slots.h"
#include "kernels/mixers/mixer.h"
#include "kernels/ops/ops.h"

namespace ovq::kernels {

// The processing of queries, keys and values between their projections and a mixer's kernel, in
// this order. The defaults are those of the OVQ paper (appendix 8.2).
struct AttentionInput {
  // Value residual: v moves towards the values v' that layer `value_layer` projects from the
  // embedding.
  //   gated  v += (v' - v) sigmoid(bias + up(down(x))), the gate of rank gate_rank
  //   linear v += (v' - v) lambda
  // kGatedAfterShift: as gated, but applied to v after its token shift, with x shifted like v, or
  // by shares of its own (own_gate_shift), which there are where v has not as many channels as x.
  enum class ValueResidual : uint8_t { kNone, kGated, kLinear, kGatedAfterShift };
  ValueResidual value_residual = ValueResidual::kNone;
  // The layer must be an attention that comes before, or this one; the model checks that.
  int value_layer = -1;
  int64_t gate_rank = 0;
  bool own_gate_shift = false;
  bool bias = false;            // projections of q, k, v and the output have biases
  bool output_has_bias = true;  // with bias; else that of the output has none
  bool token_shift = false;     // shifts q, k and v after the value residual; x_{-1} = x_0
  // Factor of q: beta for kUnit, beta sqrt(d) for kL2, 1 / sqrt(d) for kLayer, score_scale for
  // kNone and kRms.
  HeadNorm norm = HeadNorm::kUnit;
  std::optional<float> score_scale = {};  // empty in a config: 1 / sqrt(d)
  bool norms_all_heads = false;  // kRms over all heads of a token at once, weight [heads d]
  float norm_eps = 1e-6f;        // of kRms
  NormWeightKind norm_weight = NormWeightKind::kPlain;  // of kRms
  RopeSpec rope;                                        // dims 0: no position encoding
  QueryGrowth growth;                                   // read only without position encoding
  // Latent attention with its up-projections absorbed into those of queries and output: before all
  // that, each value and the first value_head_dim channels of each key, which are the same latent,
  // become x / sqrt(mean(x^2) + latent_norm_eps) kv_norm.
  bool latent_norm = false;
  float latent_norm_eps = 1e-6f;
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
// qk_norm_weight, score_scale, rope, rope_theta, rope_dims, rope_rounds_to_bfloat16, attn_scale,
// floor_scale, latent_norm, latent_norm_eps, token_shift, attention_bias, output_gate,
// output_gate_bias, value_residual, value_residual_layer and value_gate_rank
// (docs/model-format.md).
void ReadAttention(const FieldReaders& from, AttentionConfig& config);

// The name, among a batch's tensors, of the normed embedding [n_tokens, d_model] in the compute
// dtype, from which the first values of `layer` are projected.
std::string FirstValuesInput(int layer);

// Offsets from a session's base of the newest token's inputs to a layer's token shifts: q, k and v
// before their shift, and x. 0 without the shift.
struct ShiftPlaces {
  size_t qkv = 0, x = 0;
};

// A derived class has a type Config (from AttentionConfig) and a constructor of StateSpec and it,
// which calls SetFixed; Blocks; and what else differs from the defaults.
class Attention : public SequenceMixer {
 public:
  void Load(const MixerSpec& spec) final;
  void Forward(const LayerArgs& args, const ProductRows& x, TensorView y) const final;
  std::vector<StateExtent> UndoExtents(const LayerState& where,
                                       const TokenRange& tokens) const final;
  // False with a token shift: every token overwrites the stored one.
  bool CanUndoSuffix(const TokenRange& tokens) const final;
  // Everything except what a batch adds.
  virtual AttentionBlocks Blocks(const LayerState& where) const = 0;

  const AttentionShape shape;
  const AttentionInput input;

 protected:
  Attention(const StateSpec& spec, const AttentionConfig& config);
  // Sets the state's fixed fields: the attention's own ones, then those of the token shifts.
  void SetFixed(std::vector<StateField> own);

  // Loads further weights; errors go to spec.weights.
  virtual void LoadOwn(const MixerSpec&) {}
  // Fills args.tokens.out and advances the states.
  virtual void Attend(const LayerArgs& layer_args, const AttentionArgs& args) const;
  // UndoExtents and CanUndoSuffix without token shifts, the latter for tokens within a span that do
  // not end it.
  virtual std::vector<StateExtent> OwnExtents(const LayerState& where,
                                              const TokenRange& tokens) const;
  virtual bool CanUndoOwnSuffix(const TokenRange&) const { return true; }

  AttentionBlocks NewBlocks() const;
  // Channels of a block of keys or values, with their padding and exponents.
  int64_t key_channels() const { return BlockChannels(dtype, shape.head_dim); }
  int64_t value_channels() const { return BlockChannels(dtype, ValueStride(shape.value_head_dim)); }

  DType dtype;                 // of stored keys and values
  int layer = 0;               // seeds the stochastic rounding of slots
  int own_fields = 0;          // fixed fields but those of token shifts
  size_t own_fixed_bytes = 0;  // their bytes

 private:
  using ValueResidual = AttentionInput::ValueResidual;

  void LoadBiases(const MixerSpec& spec);
  void LoadNorms(const MixerSpec& spec);
  void LoadValueResidual(const MixerSpec& spec);
  ShiftPlaces Newest(const LayerState& where) const;
  // Puts this layer's first values among the batch's tensors if other layers mix them in.
  void PublishValues(const LayerArgs& args) const;
  // Projects x [n_tokens, d_model]; the returned buffers live as long as scope.
  AttentionTensors Project(const LayerArgs& args, const ProductRows& rows,
                           const AttentionBlocks& blocks, ScratchScope& scope) const;
  TensorView Shift(const LayerArgs& args, TensorView x, const Buffer& mix, size_t newest,
                   ScratchScope& scope) const;
  void MixValues(const LayerArgs& args, TensorView x, float* v, int64_t stride) const;
  // Norms, score scale, RoPE and rounding of queries and keys, in place; tokens.q is at qkv. Stores
  // keys and values where that takes no kernel more.
  void Prepare(const LayerArgs& args, const AttentionBlocks& blocks, float* qkv,
               AttentionTensors& tokens) const;
  // y[n_tokens, d_model] += residual_scale o_proj(tokens.out times its gate), or =
  // (LayerArgs::adds).
  void Output(const LayerArgs& args, const AttentionTensors& tokens, TensorView y) const;

  const int64_t d_model_;
  DType compute_ = DType::kF32;
  // Weights [out, in] of q_proj, k_proj, v_proj and, with a gate, g_proj, stacked; of o_proj; and
  // of v_proj again, in a layer that publishes first values.
  Linear qkv_, out_, first_values_;
  Buffer qkv_bias_, out_bias_;    // [qkv_.out()] and [d_model] float; empty without biases
  Linear gate_down_, gate_up_;    // float32: [rank, d_model], [v, rank]
  Buffer gate_bias_;              // [v] float
  Buffer gate_shift_;             // [d_model] float, token shift of the gate's x
  float value_share_ = 0;         // lambda
  Buffer shift_;                  // [q + k + v] float
  Buffer beta_;                   // [n_heads] float
  Buffer latent_norm_;            // [value_head_dim] float, with latent_norm
  Buffer query_norm_, key_norm_;  // kLayer: weight and bias [2][head_dim] float; kRms: weight
  std::optional<RopeTable> rope_;
};

}  // namespace ovq::kernels
