// The reference of the token shift (token_shift.h), in double.
#include "kernels/mixers/common/token_shift.h"
#include "tests/reference/reference_of.h"

namespace ovq::kernels::ref {

// y_t = x_t + mix (x_{t-1} - x_t), token after token, in double.
void ShiftTokens(DeviceContext&, const BatchSequences& seqs, const TokenShift& shift) {
  for (int s = 0; s < seqs.n_seqs(); ++s) {
    auto* newest = reinterpret_cast<float*>(seqs.state[s] + shift.newest);
    for (int64_t i = 0; i < shift.width; ++i) {
      for (int32_t token = seqs.token_begin[s]; token < seqs.token_begin[s + 1]; ++token) {
        const double x =
            FloatAt({const_cast<void*>(shift.x), shift.x_dtype, {}}, token * shift.x_stride + i);
        const bool is_first = seqs.start_pos[s] + token - seqs.token_begin[s] == 0;
        const double before = !is_first ? newest[i] : shift.begins_empty ? 0 : x;
        const double mix = shift.mix ? shift.mix[i] : 0;
        const auto y = static_cast<float>(x + mix * (before - x));
        newest[i] = static_cast<float>(x);
        const int64_t at = token * shift.width + i;
        if (shift.y_dtype == DType::kF32) {
          static_cast<float*>(shift.y)[at] = y;
        } else {
          static_cast<BF16*>(shift.y)[at] = RoundToBF16(y);
        }
      }
    }
  }
}

const ReferenceOf<cpu::ShiftTokens> kShiftTokens = ShiftTokens;

}  // namespace ovq::kernels::ref
