// Row-wise operations and matrix products. Every row's result depends on that row alone, bit for
// bit: not on the number of rows in the call, the row's place or the number of threads. All
// tensors, pointers and spans (ids, positions, rows) lie in the memory of the context's device; on
// CUDA the operations are queued on its stream.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/common/device.h"
#include "kernels/common/tensor.h"

namespace ovq::kernels {

// The storage type of a product's weights.
enum class WeightType : uint8_t {
  kAsComputed,  // in the compute type
  // int8 with one scale per output; rows of x are rounded the same way when a product reads them.
  // With r(v) = max |v_i| / 127 and q(v) = v * (127 / max |v_i|) rounded to the nearest integers,
  // ties to even:
  //   y[i][o] = (sum_k q(x_i)_k q(w_o)_k) r(x_i) r(w_o)
  // The sum is exact and the rest is float32 in this order, so the CPU and plain loops agree to the
  // bit. A row of x with a number that is not finite gives NaN; one with all numbers below 2^-100
  // gives zeros. CUDA leaves x in bfloat16: y[i][o] = (sum_k x_ik q(w_o)_k) r(w_o).
  kInt8,
};
// The most inputs of an int8 product: sums of more products of a byte and an int8 could overflow
// int32.
constexpr int64_t kMaxInt8Inputs = 1 << 16;

// The types of a product.
struct ProductTypes {
  DType compute;  // of x: kF32 (products and sums in float32) or kBF16 (bfloat16 factors, float32
                  // sums)
  WeightType weights;
  ProductTypes(DType compute,
               WeightType weights = WeightType::kAsComputed)  // NOLINT: a DType will do
      : compute(compute), weights(weights) {}
};

struct NormWeights {
  TensorView weight;     // [d] F32
  TensorView bias = {};  // [d] F32; optional for RmsNorm (null data)
  float eps = 0;
};

// The rows x [n, in] of a product, in its compute type. With a norm they are still to be computed:
// x = RmsNorm(h, norm, h_rows). The first product of them does that, inside of its own kernel where
// that is faster, and leaves x for whatever reads it afterwards.
struct ProductRows {
  TensorView x;
  std::optional<NormWeights> norm = std::nullopt;
  TensorView h = {};
  std::span<const int32_t> h_rows = {};
  ProductRows(TensorView x) : x(x) {}  // NOLINT: a tensor will do
};

// The last step of a product p = x W^T.
enum class ProductEnd : uint8_t {
  kStore,   // y = p
  kAdd,     // y += p
  kSwiGlu,  // y = SwiGlu(p)
};

// Weights packed for a device. The functions and their copies own them.
struct Product {
  size_t bytes = 0;  // of the packed weights: what one pass reads
  std::function<void(DeviceContext& context, TensorView x, TensorView y, bool accumulate)> apply;
  // Does everything in one kernel, with the bits of the separate ones, and returns true; or, where
  // it has no such kernel, nothing. May be null.
  std::function<bool(DeviceContext& context, const ProductRows& x, TensorView y, ProductEnd end)>
      fused = nullptr;
};

// The weights W [out, in] of y = x W^T: several [out_i, in] parts stacked along out and packed once
// for the device.
class Linear {
 public:
  // parts: each [out_i, in], F32, BF16 or F16. InvalidArgument: no part, or a wrong type or shape.
  // Unimplemented: kInt8 with kF32 on CUDA.
  static absl::StatusOr<Linear> Make(std::span<const TensorView> parts, ProductTypes types,
                                     DeviceContext& context);

  int64_t in() const { return in_; }
  int64_t out() const { return out_; }
  size_t bytes() const { return product_.bytes; }

  // y[n, out] = x[n, in] W^T, or y += x W^T with accumulate. x in the compute type, y float32.
  void Apply(DeviceContext& context, const ProductRows& x, TensorView y,
             bool accumulate = false) const;
  // y[n, out / 2] = SwiGlu(x W^T), y F32 or BF16.
  void ApplySwiGlu(DeviceContext& context, const ProductRows& x, TensorView y) const;

 private:
  bool Fused(DeviceContext& context, const ProductRows& x, TensorView y, ProductEnd end) const;

  int64_t in_ = 0;
  int64_t out_ = 0;
  DType compute_ = DType::kF32;
  Product product_;
};

// y[i] = r / sqrt(mean(r^2) + eps) * weight + bias with r = x[rows[i]], or x[i] if `rows` is empty.
// x [n, d] F32, y [rows or n, d] F32 or BF16.
void RmsNorm(DeviceContext& context, TensorView x, const NormWeights& weights, TensorView y,
             std::span<const int32_t> rows = {});
// y[i] = (r - mean(r)) / sqrt(var(r) + eps) * weight + bias, var the mean of squares, otherwise as
// RmsNorm. y may be x.
void LayerNorm(DeviceContext& context, TensorView x, const NormWeights& weights, TensorView y,
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
// error is the frequency's own (2^-64 relative). A float64 product would be wrong by 1e-4 radians
// at position 2^40 and meaningless after 2^53.
using Phase = unsigned __int128;

// RoPE rotates pairs of a head's channels by an angle that grows with the position. Pair i < n =
// dims / 2 is
//   kHalves:      channels i, i + n;   w_i = theta^(-i / n)
//   kInterleaved: channels 2i, 2i + 1; w_i = theta^(-i / n)
//   kPairs:       channels 2i, 2i + 1; w_i = -theta^(-i / (n - 1)), -1 for n = 1 (the KVM paper's
//                 code, which rotates backwards)
// times factors[i], and sines and cosines are multiplied by the amplitude.
struct RopeSpec {
  enum class Layout : uint8_t { kHalves, kInterleaved, kPairs };
  Layout layout = Layout::kHalves;
  double theta = 10000;              // at least 1
  int dims = 0;                      // number of rotated channels, a head's first; even
  bool rounds_to_bf16 = false;       // rounds sines and cosines
  std::vector<double> factors = {};  // [dims / 2], each in (0, 1]; empty: all 1
  double amplitude = 1;
  // In place of the factors where no session has more than short_tokens tokens.
  std::vector<double> short_factors = {};
  int64_t short_tokens = 0;
};

// The frequencies of a RopeSpec, computed once, in the memory of the context's device.
class RopeTable {
 public:
  RopeTable(DeviceContext& context, const RopeSpec& spec);
  const RopeSpec& spec() const { return spec_; }
  int n_pairs() const { return spec_.dims / 2; }
  // [n_pairs] phases of one position.
  const Phase* frequencies() const { return frequencies_.as<Phase>(); }

 private:
  RopeSpec spec_;
  Buffer frequencies_;
};

// The preparation of queries and keys between their projections and a mixer's kernel, in place, for
// every head x [head_dim] of a row, line by line:
//   kUnit:  x = x / sqrt(sum(x^2) + 1e-6), times beta[head] for queries (OVQ paper, appendix 8.2)
//   kL2:    x = x / (sqrt(sum(x^2)) + 1e-5), times beta[head] for queries
//   kLayer: x = (x - mean) / sqrt(var + 1e-5) * weight + bias, which the heads share
//   kRms:   x = x / sqrt(mean(x^2) + eps) * weight, which the heads share
//   kNone:  x = x, times beta[head] for queries
//   x[i], x[j] = x[i] c - x[j] s, x[j] c + x[i] s for the pairs (i, j) of the RopeSpec, with
//                c = amplitude cos a, s = amplitude sin a at the angle a = positions[row] w
//   x = the nearest bfloat16 value, kept in float32
// The angle is reduced to one turn exactly (Phase) before sine and cosine are computed in float64,
// so it is right at any int64 position.
enum class HeadNorm : uint8_t { kNone, kUnit, kL2, kLayer, kRms };
struct HeadPrep {
  HeadRows queries;
  HeadRows keys = {};  // same n_rows and head_dim as the queries; may have no heads
  HeadNorm norm = HeadNorm::kUnit;
  const float* beta = nullptr;        // [query heads]; null: all 1
  const float* query_norm = nullptr;  // kLayer: weight and bias [2][head_dim]; kRms: weight
  const float* key_norm = nullptr;
  float eps = 0;                            // for kRms
  const RopeTable* rope = nullptr;          // null: no position encoding
  std::span<const int64_t> positions = {};  // [n_rows], read only with rope
  bool round_to_bf16 = false;
};
void PrepareHeads(DeviceContext& context, const HeadPrep& prep);

// Attention spreads over more keys the longer a text is. Queries that grow with the logarithm of
// the position keep it as sharp as it was in training (Scalable-Softmax, arXiv 2501.19399, in the
// form and order of Llama 4):
//   x = (1 + scale ln(1 + floor((positions[row] + 1) / floor_tokens))) x, for every head of a row
//   x = the nearest bfloat16 value, kept in float32, with round_to_bf16
// So those of the first floor_tokens - 1 tokens stay.
struct QueryGrowth {
  float scale = 0;  // 0: queries do not grow
  int64_t floor_tokens = 8192;

  constexpr int64_t n_floors(int64_t position) const { return (position + 1) / floor_tokens; }
};
void GrowQueries(DeviceContext& context, const HeadRows& queries, const QueryGrowth& growth,
                 std::span<const int64_t> positions, bool round_to_bf16);

// y[row] += scale [sin a | cos a], where a_i = positions[row] w_i are the angles of a kHalves
// table of amplitude 1, reduced as in PrepareHeads. y [n, 2 n_pairs] F32.
void AddSinusoids(DeviceContext& context, const RopeTable& table,
                  std::span<const int64_t> positions, float scale, TensorView y);

// y[n, f] = silu(gate) * up with gate_up[n, 2f] = [gate | up] in F32; y F32 or BF16.
void SwiGlu(DeviceContext& context, TensorView gate_up, TensorView y);
// y[n, f] = g(gate) * up, otherwise as SwiGlu, with GELU by its tanh
//   g(z) = z / 2 (1 + tanh(sqrt(2 / pi) (z + 0.044715 z^3)))
void GeGlu(DeviceContext& context, TensorView gate_up, TensorView y);
// y[n, f] = max(x, 0)^2, x in F32; y F32 or BF16.
void SquaredRelu(DeviceContext& context, TensorView x, TensorView y);

// x = a x + b y, both [n, d] F32. a = 0: x is not read.
void AddScaled(DeviceContext& context, TensorView x, float a, TensorView y, float b);
// x[i] = scale (x[i] + bias), x [n, m] F32; bias [m] F32, or none (null data).
void AddBias(DeviceContext& context, TensorView x, TensorView bias, float scale);
// x += (target - x) * share, x [n, d] F32 with rows x_stride apart.
struct Mix {
  float* x;
  int64_t n_rows, width, x_stride;
  const float* target;          // [n_rows, width]
  const float* gate = nullptr;  // [n_rows, width]: share = 1 / (1 + e^-(gate + bias))
  const float* bias = nullptr;  // [width], with gate
  float share = 0;              // without gate
};
void MixTowards(DeviceContext& context, const Mix& mix);
// x *= 1 / (1 + e^-gate), x [n, d] F32 or BF16, gate [n, d] F32 with rows gate_stride apart.
void GateBySigmoid(DeviceContext& context, TensorView x, const float* gate, int64_t gate_stride);
// y = x, x F32; y F32 or BF16.
void Copy(DeviceContext& context, TensorView x, TensorView y);
// x = cap tanh(x / cap), x [n, m] F32.
void SoftCap(DeviceContext& context, TensorView x, float cap);

// y[n, d] = table[ids[row]]; y F32 or BF16, table [vocab, d] in F32, BF16 or F16. ids are in range.
void Embed(DeviceContext& context, TensorView table, std::span<const int32_t> ids, TensorView y);

// out[row] = ln(sum(exp(x[row]))), x [n, m] F32, out [n]; summed in one fixed order; NaN for a
// row that is not finite throughout.
void LogSumExp(DeviceContext& context, TensorView x, float* out);

}  // namespace ovq::kernels
