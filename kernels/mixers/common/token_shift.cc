#include "kernels/mixers/common/token_shift.h"

#include <algorithm>

#include "kernels/common/parallel.h"

namespace ovq::kernels {

StateField TokenShiftField(int64_t width, const char* name) { return {name, DType::kF32, {width}}; }

MixerState TokenShiftState(int64_t width) {
  MixerState state;
  state.fixed = StateFields({TokenShiftField(width)});
  state.span = 1;
  state.name = "token shift";
  return state;
}

void ShiftTokens(DeviceContext& context, const BatchSequences& seqs, const TokenShift& shift) {
  Dispatch<cpu::ShiftTokens, cuda::ShiftTokens>(context, seqs, shift);
}

namespace cpu {
namespace {

// Channels that one task processes for all tokens of a sequence.
constexpr int64_t kTaskChannels = 256;

// One sequence's channels [begin, end).
template <class In, class Out>
class ShiftChannels {
 public:
  ShiftChannels(const TokenShift& shift, int64_t begin, int64_t end)
      : shift_(shift), begin_(begin), end_(end) {}

  void Run(const BatchSequences& seqs, int s) const {
    auto* newest = reinterpret_cast<float*>(seqs.state[s] + shift_.newest);
    const int32_t first = seqs.token_begin[s], last = seqs.token_begin[s + 1] - 1;
    if (seqs.start_pos[s] > 0) {
      ShiftToken(first, newest);
    } else if (shift_.begins_empty) {
      ShiftToken(first, static_cast<const float*>(nullptr));
    } else {
      ShiftToken(first, X(first));
    }
    for (int32_t token = first + 1; token <= last; ++token) ShiftToken(token, X(token - 1));
    for (int64_t i = begin_; i < end_; ++i) newest[i] = ToFloat(X(last)[i]);
  }

 private:
  const In* X(int32_t token) const {
    return static_cast<const In*>(shift_.x) + token * shift_.x_stride;
  }
  // before: the previous token's x; null for zeros.
  template <class Before>
  void ShiftToken(int32_t token, const Before* before) const {
    const In* x = X(token);
    Out* y = static_cast<Out*>(shift_.y) + token * shift_.width;
    for (int64_t i = begin_; i < end_; ++i) {
      const float mix = shift_.mix ? shift_.mix[i] : 0, at = ToFloat(x[i]);
      y[i] = FromFloat<Out>(at + mix * ((before ? ToFloat(before[i]) : 0) - at));
    }
  }

  const TokenShift& shift_;
  const int64_t begin_, end_;
};

template <class In>
void ShiftAny(const TokenShift& shift, const BatchSequences& seqs, int s, int64_t begin,
              int64_t end) {
  if (shift.y_dtype == DType::kF32) {
    ShiftChannels<In, float>(shift, begin, end).Run(seqs, s);
  } else {
    ShiftChannels<In, BF16>(shift, begin, end).Run(seqs, s);
  }
}

}  // namespace

void ShiftTokens(DeviceContext& context, const BatchSequences& seqs, const TokenShift& shift) {
  const int64_t parts = (shift.width + kTaskChannels - 1) / kTaskChannels;
  ParallelFor(context, seqs.n_seqs() * parts, [&](int64_t task, int) {
    const auto s = static_cast<int>(task / parts);
    const int64_t begin = task % parts * kTaskChannels;
    const int64_t end = std::min(begin + kTaskChannels, shift.width);
    if (shift.x_dtype == DType::kF32) {
      ShiftAny<float>(shift, seqs, s, begin, end);
    } else {
      ShiftAny<BF16>(shift, seqs, s, begin, end);
    }
  });
}

}  // namespace cpu
}  // namespace ovq::kernels
