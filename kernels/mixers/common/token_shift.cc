#include "kernels/mixers/common/token_shift.h"

#include <algorithm>

#include "kernels/common/dispatch.h"
#include "kernels/common/parallel.h"

namespace ovq {

OVQ_ON_EVERY_DEVICE(ShiftTokens)

StateField TokenShiftField(int64_t width) { return {"newest_row", DType::kF32, {width}}; }

MixerState TokenShiftState(int64_t width) {
  MixerState state;
  state.fixed = StateFields({TokenShiftField(width)});
  state.span = 1;
  return state;
}

void ShiftTokens(DeviceContext& context, const StepSeqs& seqs, const TokenShift& shift) {
  Dispatch<ref::ShiftTokens, cpu::ShiftTokens, cuda::ShiftTokens>(context, seqs, shift);
}

namespace ref {

// Row after row as the equation has it, in double.
void ShiftTokens(DeviceContext&, const StepSeqs& seqs, const TokenShift& shift) {
  for (int s = 0; s < seqs.n_seqs(); ++s) {
    auto* newest = reinterpret_cast<float*>(seqs.state[s] + shift.newest);
    for (int64_t i = 0; i < shift.width; ++i) {
      for (int32_t row = seqs.row_begin[s]; row < seqs.row_begin[s + 1]; ++row) {
        const double x = shift.x[row * shift.x_stride + i];
        const bool is_first = seqs.start_pos[s] + row - seqs.row_begin[s] == 0;
        const double before = !is_first ? newest[i] : shift.begins_empty ? 0 : x;
        const double mix = shift.mix ? shift.mix[i] : 0;
        const auto y = static_cast<float>(x + mix * (before - x));
        newest[i] = static_cast<float>(x);
        const int64_t at = row * shift.width + i;
        if (shift.y_dtype == DType::kF32) {
          static_cast<float*>(shift.y)[at] = y;
        } else {
          static_cast<BF16*>(shift.y)[at] = RoundToBF16(y);
        }
      }
    }
  }
}

}  // namespace ref

namespace cpu {
namespace {

// Channels that one task carries through all rows of a sequence.
constexpr int64_t kTaskChannels = 256;

template <class T>
void ShiftChannels(const TokenShift& shift, const StepSeqs& seqs, int s, int64_t begin,
                   int64_t end) {
  auto* newest = reinterpret_cast<float*>(seqs.state[s] + shift.newest);
  const int32_t first = seqs.row_begin[s], last = seqs.row_begin[s + 1] - 1;
  const float* before = newest;
  if (seqs.start_pos[s] == 0)
    before = shift.begins_empty ? nullptr : shift.x + first * shift.x_stride;
  for (int32_t row = first; row <= last; ++row) {
    const float* x = shift.x + row * shift.x_stride;
    T* y = static_cast<T*>(shift.y) + row * shift.width;
    for (int64_t i = begin; i < end; ++i) {
      const float mix = shift.mix ? shift.mix[i] : 0;
      y[i] = FromFloat<T>(x[i] + mix * ((before ? before[i] : 0) - x[i]));
    }
    before = x;
  }
  std::copy_n(shift.x + last * shift.x_stride + begin, end - begin, newest + begin);
}

}  // namespace

void ShiftTokens(DeviceContext& context, const StepSeqs& seqs, const TokenShift& shift) {
  const int64_t parts = (shift.width + kTaskChannels - 1) / kTaskChannels;
  ParallelFor(context, seqs.n_seqs() * parts, [&](int64_t task, int) {
    const auto s = static_cast<int>(task / parts);
    const int64_t begin = task % parts * kTaskChannels;
    const int64_t end = std::min(begin + kTaskChannels, shift.width);
    if (shift.y_dtype == DType::kF32) {
      ShiftChannels<float>(shift, seqs, s, begin, end);
    } else {
      ShiftChannels<BF16>(shift, seqs, s, begin, end);
    }
  });
}

}  // namespace cpu
}  // namespace ovq
