// Row-wise operations and matrix products. Every row's result depends on that row alone, bit for
// bit: never on how many rows the call has, where the row stands or how many threads run.
// All tensors, pointers and spans (ids, positions, rows) lie in the memory of the context's device;
// on CUDA the operations are queued on its stream.
#pragma once

#include <cstdint>
#include <functional>
#include <span>

#include "absl/status/statusor.h"
#include "kernels/common/device.h"
#include "kernels/common/tensor.h"

namespace ovq {

// What a device makes of weights: they are packed for it, and belong to `apply` and its copies.
struct Product {
  size_t bytes = 0;  // of the packed weights: what one pass reads
  std::function<void(DeviceContext& context, TensorView x, TensorView y, bool accumulate)> apply;
};

// Weights of y = x W^T, several [out_i, in] parts stacked along out, packed once for the device.
class Linear {
 public:
  // parts: each [out_i, in], F32, BF16 or F16. compute: kF32 (products and sums in float32) or
  // kBF16 (bfloat16 factors, float32 sums). InvalidArgument: no part, or a type or a shape that
  // does not fit.
  static absl::StatusOr<Linear> Make(std::span<const TensorView> parts, DType compute,
                                     DeviceContext& context);

  int64_t in() const { return in_; }
  int64_t out() const { return out_; }
  size_t bytes() const { return product_.bytes; }

  // y[n, out] = x[n, in] W^T, or += with accumulate. x in the compute type, y float32.
  void Apply(DeviceContext& context, TensorView x, TensorView y, bool accumulate = false) const;

 private:
  int64_t in_ = 0;
  int64_t out_ = 0;
  DType compute_ = DType::kF32;
  Product product_;
};

// y[i] = r / sqrt(mean(r^2) + eps) * weight with r = x[rows[i]], or x[i] if `rows` is empty.
// x [n, d] F32, weight [d] F32, y [rows or n, d] F32 or BF16.
void RmsNorm(DeviceContext& context, TensorView x, TensorView weight, float eps, TensorView y,
             std::span<const int32_t> rows = {});

// A [n_rows, n_heads, head_dim] float32 view whose rows are row_stride elements apart.
struct HeadRows {
  float* data;
  int64_t n_rows;
  int n_heads;
  int head_dim;
  int64_t row_stride;
};

// An angle as a fraction of a full turn, in units of 2^-128 turn. A frequency is the phase of one
// position; its product with a position, modulo 2^128, is the angle modulo one turn without any
// rounding. So angles at two positions differ by exactly the angle of their distance, and the only
// error is the frequency's own (2^-64 relative). A float64 product is wrong by 1e-4 radians at
// position 2^40 and meaningless after 2^53.
using Phase = unsigned __int128;

// The frequencies theta^(-2i / head_dim) of RoPE, made once for the context's device.
class RopeTable {
 public:
  RopeTable(DeviceContext& context, double theta, int head_dim);  // head_dim even, theta >= 1
  double theta() const { return theta_; }
  int head_dim() const { return head_dim_; }
  // [head_dim / 2] phases of one position, in the device's memory.
  const Phase* frequencies() const { return frequencies_.as<Phase>(); }

 private:
  double theta_;
  int head_dim_;
  Buffer frequencies_;
};

// What comes between a projection and a mixer's kernel, in place, for every head x of a row:
//   x = x / sqrt(sum(x^2) + 1e-6), times beta[head] for queries (OVQ paper, appendix 8.2)
//   x[i], x[i + d/2] = x[i] cos a - x[i + d/2] sin a, x[i + d/2] cos a + x[i] sin a,  i < d/2,
//                      at the angle a = positions[row] * theta^(-2i/d): RoPE by rotated halves
//   x = the nearest bfloat16 value, kept in float32
// The angle is reduced to one turn exactly (Phase; in long double on ref) before sine and cosine
// are taken in float64, so that it holds at any int64 position.
struct HeadPrep {
  HeadRows queries;
  HeadRows keys = {};                       // n_rows and head_dim of the queries; may have no heads
  const float* beta = nullptr;              // [query heads]; null: all 1
  const RopeTable* rope = nullptr;          // null: no position encoding
  std::span<const int64_t> positions = {};  // [n_rows], read only with rope
  bool unit_norm = true;
  bool round_to_bf16 = false;
};
void PrepareHeads(DeviceContext& context, const HeadPrep& prep);

// y[n, f] = silu(gate) * up with gate_up[n, 2f] = [gate | up] in F32; y F32 or BF16.
void SwiGlu(DeviceContext& context, TensorView gate_up, TensorView y);

// y[n, d] = table[ids[row]] in F32; table [vocab, d] in F32, BF16 or F16. ids are in range.
void Embed(DeviceContext& context, TensorView table, std::span<const int32_t> ids, TensorView y);

// out[row] = ln(sum(exp(x[row]))), x [n, m] F32, out [n]; summed in one fixed order. An infinite
// maximum of a row is its result.
void LogSumExp(DeviceContext& context, TensorView x, float* out);

}  // namespace ovq
