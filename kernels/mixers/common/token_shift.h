// Token shift: every token's input moves towards that of the token before it, channel by channel.
// With x [n_tokens, width] and mix [width]:
//   y_t = x_t + mix (x_{t-1} - x_t)
// x_{-1} is x_0, or zeros. A session keeps its newest x.
#pragma once

#include <cstdint>

#include "kernels/common/dispatch.h"
#include "kernels/mixers/mixer.h"

namespace ovq::kernels {

// The newest x of a session, float [width], as a field of a state or as a state of its own.
StateField TokenShiftField(int64_t width, const char* name = "newest_row");
MixerState TokenShiftState(int64_t width);

struct TokenShift {
  const void* x;  // [n_tokens, width], tokens x_stride elements apart
  int64_t x_stride;
  int64_t width;
  const float* mix;             // [width]; null: y = x
  size_t newest;                // offset of the field from a session's base
  bool begins_empty;            // true: x_{-1} is zeros; false: x_0
  void* y;                      // [n_tokens, width], packed; must not overlap x
  DType y_dtype;                // kF32 or kBF16
  DType x_dtype = DType::kF32;  // or kBF16
};

// Shifts all tokens of a batch and stores each sequence's last x in its session.
void ShiftTokens(DeviceContext& context, const BatchSequences& seqs, const TokenShift& shift);

OVQ_ON_EVERY_DEVICE(ShiftTokens)

}  // namespace ovq::kernels
