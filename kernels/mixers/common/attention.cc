#include "kernels/mixers/common/attention.h"

#include "absl/strings/str_cat.h"

namespace ovq {
namespace {

constexpr int64_t kMaxHeads = 4096;
constexpr int64_t kMaxHeadDim = 1024;

}  // namespace

AttentionShape ReadAttentionShape(AttrReader& model) {
  AttentionShape shape;
  shape.n_heads = static_cast<int>(model.Int("num_attention_heads", 1, kMaxHeads));
  shape.n_kv_heads =
      static_cast<int>(model.IntOr("num_key_value_heads", shape.n_heads, 1, kMaxHeads));
  shape.head_dim = static_cast<int>(model.Int("head_dim", 1, kMaxHeadDim));
  shape.value_head_dim =
      static_cast<int>(model.IntOr("value_head_dim", shape.head_dim, 1, kMaxHeadDim));
  if (model.ok() && shape.n_heads % shape.n_kv_heads != 0) {
    model.Fail("num_key_value_heads", absl::StrCat("expected a divisor of num_attention_heads = ",
                                                   shape.n_heads, ", got ", shape.n_kv_heads));
  }
  return shape;
}

AttentionProjection::AttentionProjection(const MixerSpec& spec, const AttentionShape& shape,
                                         double rope_theta)
    : shape_(shape), compute_(spec.compute_dtype) {
  const int64_t k_rows = int64_t{shape.n_kv_heads} * shape.head_dim;
  const int64_t v_rows = int64_t{shape.n_kv_heads} * shape.value_head_dim;
  qkv_ = spec.weights.Product({{"self_attn.q_proj.weight", int64_t{shape.n_heads} * shape.head_dim},
                               {"self_attn.k_proj.weight", k_rows},
                               {"self_attn.v_proj.weight", v_rows}},
                              spec.state.d_model);
  out_ = spec.weights.Product({{"self_attn.o_proj.weight", spec.state.d_model}},
                              int64_t{shape.n_heads} * shape.value_head_dim);
  beta_ = spec.weights.Floats("self_attn.beta", {shape.n_heads});
  if (rope_theta > 0) rope_.emplace(spec.context, rope_theta, shape.head_dim);
}

AttentionRows AttentionProjection::Project(const LayerStep& step, TensorView x,
                                           ScratchScope& scope) const {
  const int64_t n_rows = step.seqs.n_rows();
  const int64_t stride = qkv_.out();
  const size_t out_elements = static_cast<size_t>(n_rows) * static_cast<size_t>(out_.in());
  float* qkv = scope.Allocate<float>(static_cast<size_t>(n_rows * stride));
  void* out = scope.Allocate<std::byte>(out_elements * DTypeBytes(compute_));
  qkv_.Apply(step.context, x, {.data = qkv, .dtype = DType::kF32, .shape = {n_rows, stride}});

  float* k = qkv + int64_t{shape_.n_heads} * shape_.head_dim;
  const HeadRows queries = {qkv, n_rows, shape_.n_heads, shape_.head_dim, stride};
  const HeadRows keys = {k, n_rows, shape_.n_kv_heads, shape_.head_dim, stride};
  PrepareHeads(step.context,
               {.queries = queries,
                .keys = keys,
                .beta = beta_.as<float>(),
                .rope = rope_ ? &*rope_ : nullptr,
                .positions = {step.seqs.device.positions, static_cast<size_t>(n_rows)},
                .round_to_bf16 = compute_ == DType::kBF16});
  return {.q = qkv,
          .k = k,
          .v = k + int64_t{shape_.n_kv_heads} * shape_.head_dim,
          .stride = stride,
          .out = out,
          .out_dtype = compute_,
          .x = x};
}

void AttentionProjection::Output(DeviceContext& context, const AttentionRows& rows,
                                 TensorView y) const {
  const TensorView attended = {
      .data = rows.out, .dtype = rows.out_dtype, .shape = {y.shape[0], out_.in()}};
  out_.Apply(context, attended, y, /*accumulate=*/true);
}

}  // namespace ovq
