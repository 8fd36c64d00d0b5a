// ReadLogits of sample.h on each device. Arguments are already validated.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/ops/sample.h"

namespace ovq {

// The order of logits for any bits a model may give.
constexpr bool BetterLogit(const TokenLogit& a, const TokenLogit& b) {
  return a.logit != b.logit ? a.logit > b.logit : a.id < b.id;
}

}  // namespace ovq

namespace ovq::ref {
void ReadLogits(DeviceContext& context, TensorView logits, LogitsReading& reading);
}  // namespace ovq::ref

namespace ovq::cpu {
void ReadLogits(DeviceContext& context, TensorView logits, LogitsReading& reading);
}  // namespace ovq::cpu

namespace ovq::cuda {
void ReadLogits(DeviceContext& context, TensorView logits, LogitsReading& reading);
}  // namespace ovq::cuda
