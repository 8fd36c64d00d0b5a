// What every softmax-type mixer does around its kernel: projections, unit norms, score scale, RoPE.
#pragma once

#include <cstdint>
#include <optional>

#include "kernels/mixers/mixer.h"
#include "kernels/ops/ops.h"

namespace ovq {

// Query head h reads key/value head h / group().
struct AttentionShape {
  int64_t d_model = 0;
  int n_heads = 0;
  int n_kv_heads = 0;
  int head_dim = 0;
  int value_head_dim = 0;
  constexpr int group() const { return n_heads / n_kv_heads; }
};

// From num_attention_heads, num_key_value_heads, head_dim, value_head_dim, hidden_size.
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

}  // namespace ovq
