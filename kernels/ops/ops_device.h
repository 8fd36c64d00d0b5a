// The row-wise operations of ops.h on each device. Arguments are already validated.
#pragma once

#include <cstdint>

#include "kernels/common/dispatch.h"
#include "kernels/ops/ops.h"

namespace ovq::kernels {

// RmsNorm and LayerNorm.
struct NormTask {
  bool is_centered;  // LayerNorm
  int64_t n_rows, width;
  const float* x;
  const int32_t* rows;         // [n_rows]; null: every row of x
  const float *weight, *bias;  // [width]; RmsNorm: bias may be null
  float eps;
  Activations y;
};
void Normalize(DeviceContext& context, const NormTask& task);

// The operations that compute each element of y [n_rows, width] from those of a and b in its place
// and of c in its column.
struct RowMap {
  enum Fn : uint8_t {
    kSwiGlu,       // y = a / (1 + e^-a) b
    kGeGlu,        // y = a / (1 + e^-2u) b, u = kGeluScale (a + kGeluCube a^3)
    kSquaredRelu,  // y = max(a, 0)^2
    kAddScaled,    // y = p y + q a; p = 0: y is not read
    kAddBias,      // y = p (y + c); c may be null
    kMixTowards,   // y += (a - y) share, share = 1 / (1 + e^-(b + c)), or p if b is null
    kGate,         // y = y / (1 + e^-a)
    kCopy,         // y = a
    kSoftCap,      // y = p tanh(y / p)
  };
  Fn fn;
  int64_t n_rows, width;
  Activations y;
  int64_t y_stride;
  const float* a = nullptr;
  int64_t a_stride = 0;
  const float* b = nullptr;
  int64_t b_stride = 0;
  const float* c = nullptr;  // [width]
  float p = 0, q = 0;
};
void MapRows(DeviceContext& context, const RowMap& map);

OVQ_ON_EVERY_DEVICE(Normalize)
OVQ_ON_EVERY_DEVICE(MapRows)
OVQ_ON_EVERY_DEVICE(PrepareHeads)
OVQ_ON_EVERY_DEVICE(GrowQueries)
OVQ_ON_EVERY_DEVICE(AddSinusoids)
OVQ_ON_EVERY_DEVICE(LogSumExp)
OVQ_ON_EVERY_DEVICE(Embed)

namespace cpu {
// Normalises one head x [n], the first part of PrepareHeads. scale: for kUnit, kL2 and kNone;
// weights: [2][n] for kLayer, [n] for kRms; eps: for kRms.
void NormHead(HeadNorm norm, float* x, int n, float scale, const float* weights, float eps);
// Returns 0, or NaN if some element of a row x [n] is not finite.
float ZeroIfFinite(const float* x, int64_t n);
// ln(sum(exp(x))) of a row x [n], NaN if some element is not finite.
float RowLogSumExp(const float* x, int64_t n);
// y[i] = x[i] for the elements whose bit i % 32 of allowed[i / 32] is set, minus infinity for the
// others and for NaN, [n]. Returns ln(sum(exp(y))), minus infinity if that is all of y.
float MaskedLogSumExp(const float* x, const uint32_t* allowed, int64_t n, float* y);
}  // namespace cpu

// The eps of kL2 and kLayer.
inline constexpr float kHeadNormEps = 1e-5f;
// sqrt(2 / pi), and the weight of the cube, of GELU's tanh.
inline constexpr float kGeluScale = 0.7978845608028654f, kGeluCube = 0.044715f;

// A RopeTable as kernels read it: pair i < n of a head is elements i * step, i * step + distance.
struct RopePairs {
  const Phase* frequencies = nullptr;  // [n]
  int n = 0, step = 1, distance = 0;
  bool rounds_to_bf16 = false;
  double amplitude = 1;

  RopePairs() = default;
  explicit RopePairs(const RopeTable& table)
      : frequencies(table.frequencies()),
        n(table.n_pairs()),
        step(table.spec().layout == RopeSpec::Layout::kHalves ? 1 : 2),
        distance(step == 1 ? n : 1),
        rounds_to_bf16(table.spec().rounds_to_bf16),
        amplitude(table.spec().amplitude) {}
};

// The phase in half turns, in [-1, 1]: its upper 64 bits as a signed number.
constexpr double HalfTurns(Phase phase) {
  const auto upper = static_cast<int64_t>(static_cast<uint64_t>(phase >> 64));
  return static_cast<double>(upper) * 0x1p-63;
}

}  // namespace ovq::kernels
