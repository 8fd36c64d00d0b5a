// The row-wise operations of ops.h on each device. Arguments are already validated.
#pragma once

#include <cstdint>

#include "kernels/common/dispatch.h"
#include "kernels/ops/ops.h"

namespace ovq::kernels {

OVQ_ON_EVERY_DEVICE(RmsNorm)
OVQ_ON_EVERY_DEVICE(LayerNorm)
OVQ_ON_EVERY_DEVICE(PrepareHeads)
OVQ_ON_EVERY_DEVICE(AddSinusoids)
OVQ_ON_EVERY_DEVICE(SwiGlu)
OVQ_ON_EVERY_DEVICE(SquaredRelu)
OVQ_ON_EVERY_DEVICE(AddScaled)
OVQ_ON_EVERY_DEVICE(AddBias)
OVQ_ON_EVERY_DEVICE(MixTowards)
OVQ_ON_EVERY_DEVICE(GateBySigmoid)
OVQ_ON_EVERY_DEVICE(Copy)
OVQ_ON_EVERY_DEVICE(SoftCap)
OVQ_ON_EVERY_DEVICE(LogSumExp)
OVQ_ON_EVERY_DEVICE(Embed)

namespace cpu {
// Normalises one head x [n], the first part of PrepareHeads. scale: for kUnit, kL2 and kNone;
// weights: [2][n] for kLayer, [n] for kRms; eps: for kRms.
void NormHead(HeadNorm norm, float* x, int n, float scale, const float* weights, float eps);
}  // namespace cpu

// The eps of kL2 and kLayer.
inline constexpr float kHeadNormEps = 1e-5f;

// The phase in half turns, in [-1, 1]: its upper 64 bits as a signed number.
constexpr double HalfTurns(Phase phase) {
  const auto upper = static_cast<int64_t>(static_cast<uint64_t>(phase >> 64));
  return static_cast<double>(upper) * 0x1p-63;
}

}  // namespace ovq::kernels
