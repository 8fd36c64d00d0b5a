#include "kernels/mixers/common/attention.h"

#include <array>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace ovq {
namespace {

constexpr int64_t kMaxHeads = 4096;
constexpr int64_t kMaxHeadDim = 1024;

}  // namespace

absl::StatusOr<AttentionShape> ReadAttentionShape(const Attrs& model) {
  absl::StatusOr<int64_t> d_model = model.Int("hidden_size", 1, 1 << 20);
  if (!d_model.ok()) return d_model.status();
  absl::StatusOr<int64_t> heads = model.Int("num_attention_heads", 1, kMaxHeads);
  if (!heads.ok()) return heads.status();
  absl::StatusOr<int64_t> kv_heads = model.IntOr("num_key_value_heads", *heads, 1, *heads);
  if (!kv_heads.ok()) return kv_heads.status();
  if (*heads % *kv_heads != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("num_key_value_heads: expected a divisor of num_attention_heads = ", *heads,
                     ", got ", *kv_heads));
  }
  absl::StatusOr<int64_t> head_dim = model.Int("head_dim", 1, kMaxHeadDim);
  if (!head_dim.ok()) return head_dim.status();
  absl::StatusOr<int64_t> value_dim = model.IntOr("value_head_dim", *head_dim, 1, kMaxHeadDim);
  if (!value_dim.ok()) return value_dim.status();
  return AttentionShape{.d_model = *d_model,
                        .n_heads = static_cast<int>(*heads),
                        .n_kv_heads = static_cast<int>(*kv_heads),
                        .head_dim = static_cast<int>(*head_dim),
                        .value_head_dim = static_cast<int>(*value_dim)};
}

absl::StatusOr<AttentionProjection> AttentionProjection::Make(const MixerSpec& spec,
                                                              const AttentionShape& shape,
                                                              double rope_theta) {
  AttentionProjection made;
  made.shape_ = shape;
  made.compute_ = spec.compute_dtype;
  const int64_t q_out = int64_t{shape.n_heads} * shape.head_dim;
  const int64_t k_out = int64_t{shape.n_kv_heads} * shape.head_dim;
  const int64_t v_out = int64_t{shape.n_kv_heads} * shape.value_head_dim;
  const int64_t o_in = int64_t{shape.n_heads} * shape.value_head_dim;

  absl::StatusOr<TensorView> q = spec.weights("self_attn.q_proj.weight", {q_out, shape.d_model});
  if (!q.ok()) return q.status();
  absl::StatusOr<TensorView> k = spec.weights("self_attn.k_proj.weight", {k_out, shape.d_model});
  if (!k.ok()) return k.status();
  absl::StatusOr<TensorView> v = spec.weights("self_attn.v_proj.weight", {v_out, shape.d_model});
  if (!v.ok()) return v.status();
  absl::StatusOr<TensorView> o = spec.weights("self_attn.o_proj.weight", {shape.d_model, o_in});
  if (!o.ok()) return o.status();
  absl::StatusOr<TensorView> beta = spec.weights("self_attn.beta", {shape.n_heads});
  if (!beta.ok()) return beta.status();
  const std::vector<float> beta_floats = ToFloats(*beta);
  made.beta_ = spec.context.Upload(beta_floats.data(), beta_floats.size() * sizeof(float));
  if (rope_theta > 0) made.rope_.emplace(spec.context, rope_theta, shape.head_dim);

  const std::array<TensorView, 3> qkv = {*q, *k, *v};
  absl::StatusOr<Linear> packed_qkv = Linear::Make(qkv, spec.compute_dtype, spec.context);
  if (!packed_qkv.ok()) return packed_qkv.status();
  made.qkv_ = *std::move(packed_qkv);
  absl::StatusOr<Linear> packed_out = Linear::Make({&*o, 1}, spec.compute_dtype, spec.context);
  if (!packed_out.ok()) return packed_out.status();
  made.out_ = *std::move(packed_out);
  return made;
}

AttentionRows AttentionProjection::Project(DeviceContext& context, const StepSeqs& seqs,
                                           TensorView x, ScratchScope& scope) const {
  const int64_t n_rows = seqs.n_rows();
  const int64_t stride = qkv_.out();
  const size_t out_elements = static_cast<size_t>(n_rows) * static_cast<size_t>(out_.in());
  float* qkv = scope.Allocate<float>(static_cast<size_t>(n_rows * stride));
  void* out = scope.Allocate<std::byte>(out_elements * DTypeBytes(compute_));
  qkv_.Apply(context, x, {.data = qkv, .dtype = DType::kF32, .shape = {n_rows, stride}});

  float* k = qkv + int64_t{shape_.n_heads} * shape_.head_dim;
  const HeadRows queries = {qkv, n_rows, shape_.n_heads, shape_.head_dim, stride};
  const HeadRows keys = {k, n_rows, shape_.n_kv_heads, shape_.head_dim, stride};
  PrepareHeads(context, {.queries = queries,
                         .keys = keys,
                         .beta = beta_.as<float>(),
                         .rope = rope_ ? &*rope_ : nullptr,
                         .positions = {seqs.device.positions, static_cast<size_t>(n_rows)},
                         .round_to_bf16 = compute_ == DType::kBF16});
  return {.q = qkv,
          .k = k,
          .v = k + int64_t{shape_.n_kv_heads} * shape_.head_dim,
          .stride = stride,
          .out = out,
          .out_dtype = compute_};
}

void AttentionProjection::Output(DeviceContext& context, const AttentionRows& rows,
                                 TensorView y) const {
  const TensorView attended = {
      .data = rows.out, .dtype = rows.out_dtype, .shape = {y.shape[0], out_.in()}};
  out_.Apply(context, attended, y, /*accumulate=*/true);
}

}  // namespace ovq
