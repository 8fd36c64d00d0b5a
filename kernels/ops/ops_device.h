// The row-wise operations of ops.h on each device. Arguments are already validated.
#pragma once

#include <cstdint>

#include "kernels/common/dispatch.h"
#include "kernels/ops/ops.h"

namespace ovq {

OVQ_ON_EVERY_DEVICE(RmsNorm)
OVQ_ON_EVERY_DEVICE(PrepareHeads)
OVQ_ON_EVERY_DEVICE(SwiGlu)
OVQ_ON_EVERY_DEVICE(LogSumExp)
OVQ_ON_EVERY_DEVICE(Embed)

namespace cpu {
// x [n] = x / sqrt(sum(x^2) + 1e-6) * scale, a part of PrepareHeads.
void UnitNorm(float* x, int n, float scale);
}  // namespace cpu

// The phase in half turns, in [-1, 1]: its upper 64 bits as a signed number.
constexpr double HalfTurns(Phase phase) {
  const auto upper = static_cast<int64_t>(static_cast<uint64_t>(phase >> 64));
  return static_cast<double>(upper) * 0x1p-63;
}

}  // namespace ovq
