// What every softmax-type mixer has around its attention: projections, unit norms, score scale,
// RoPE.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "kernels/mixers/mixer.h"
#include "kernels/ops/ops.h"

namespace ovq {

// Query head h reads key/value head h / group().
struct AttentionShape {
  int n_heads = 0;
  int n_kv_heads = 0;
  int head_dim = 0;
  int value_head_dim = 0;
  constexpr int group() const { return n_heads / n_kv_heads; }
};

// From num_attention_heads, num_key_value_heads, head_dim, value_head_dim.
AttentionShape ReadAttentionShape(AttrReader& model);

// One step's queries, keys and values, ready for a kernel. Rows are `stride` floats apart.
struct AttentionRows {
  const float* q;  // [n_rows, n_heads, head_dim] unit norm times beta, rotated if RoPE is on;
  const float* k;  // [n_rows, n_kv_heads, head_dim] unit norm, rotated if RoPE is on;
                   // both bfloat16 values if that is the compute dtype
  const float* v;  // [n_rows, n_kv_heads, value_head_dim]
  int64_t stride;
  void* out;  // [n_rows, n_heads, value_head_dim], packed
  DType out_dtype;
  TensorView x = {};  // [n_rows, d_model] what the others were projected from, in the compute dtype
};

// q_proj, k_proj, v_proj, o_proj [out, in] and beta [n_heads] of one layer.
class AttentionProjection {
 public:
  // rope_theta 0 = no position encoding. Its errors are spec.weights'.
  AttentionProjection(const MixerSpec& spec, const AttentionShape& shape, double rope_theta);

  // Fills rows from x [n_rows, d_model]; the buffers live as long as scope.
  AttentionRows Project(const LayerStep& step, TensorView x, ScratchScope& scope) const;
  // y[n_rows, d_model] += o_proj(rows.out).
  void Output(DeviceContext& context, const AttentionRows& rows, TensorView y) const;
  size_t bytes() const { return qkv_.bytes() + out_.bytes(); }

 private:
  AttentionShape shape_;
  DType compute_;
  Linear qkv_;
  Linear out_;
  Buffer beta_;  // [n_heads] float
  std::optional<RopeTable> rope_;
};

// What an AttentionMixer is made around, with the defaults of its optional parts. An attention
// derives from it and has
//   T(const StateSpec&, AttrReader& model, AttrReader& section): reads its fields of config.json
//   void Attend(const LayerStep&, const AttentionRows&) const: fills rows.out, advances the states
//   std::vector<StateExtent> Overwrites(...) const: as SequenceMixer's
struct Attention {
  AttentionShape shape;
  double rope_theta = 0;  // 0: no position encoding
  MixerState layout = {};

  void Load(const MixerSpec&) {}  // weights beside the projections'; errors are spec.weights'
  size_t weight_bytes() const { return 0; }
};

template <class T>
class AttentionMixer final : public SequenceMixer {
 public:
  AttentionMixer(T attention, AttentionProjection projection)
      : attention_(std::move(attention)), projection_(std::move(projection)) {}

  const MixerState& state() const override { return attention_.layout; }
  size_t weight_bytes() const override { return projection_.bytes() + attention_.weight_bytes(); }
  void Forward(const LayerStep& step, TensorView x, TensorView y) const override {
    ScratchScope scope(step.context);
    const AttentionRows rows = projection_.Project(step, x, scope);
    attention_.Attend(step, rows);
    projection_.Output(step.context, rows, y);
  }
  std::vector<StateExtent> Overwrites(const LayerState& where,
                                      const TokenRange& tokens) const override {
    return attention_.Overwrites(where, tokens);
  }

 private:
  T attention_;
  AttentionProjection projection_;
};

template <class T>
absl::StatusOr<T> ReadAttention(const StateSpec& spec) {
  AttrReader model(spec.model), section(spec.section);
  T attention(spec, model, section);
  absl::Status status = model.status();
  status.Update(section.status());
  if (!status.ok()) return status;
  return attention;
}

// The two functions of a line of the registry.
template <class T>
absl::StatusOr<MixerState> AttentionState(const StateSpec& spec) {
  const absl::StatusOr<T> attention = ReadAttention<T>(spec);
  if (!attention.ok()) return attention.status();
  return attention->layout;
}
template <class T>
absl::StatusOr<std::unique_ptr<SequenceMixer>> MakeAttention(const MixerSpec& spec) {
  absl::StatusOr<T> attention = ReadAttention<T>(spec.state);
  if (!attention.ok()) return attention.status();
  attention->Load(spec);
  AttentionProjection projection(spec, attention->shape, attention->rope_theta);
  if (!spec.weights.status().ok()) return spec.weights.status();
  return std::make_unique<AttentionMixer<T>>(*std::move(attention), std::move(projection));
}

}  // namespace ovq
