// Token shift on CUDA, the equation of token_shift.h.
#include "kernels/common/cuda/cuda_device.h"
#include "kernels/mixers/common/cuda/sequence_parts.h"
#include "kernels/mixers/common/token_shift.h"
#include "kernels/ops/cuda/rows.cuh"

namespace ovq::kernels::cuda {
namespace {

constexpr int kThreads = 128;

__device__ inline float LoadX(const TokenShift& shift, int64_t i) {
  return shift.x_dtype == DType::kF32 ? static_cast<const float*>(shift.x)[i]
                                      : ToFloat(static_cast<const BF16*>(shift.x)[i]);
}

// Launch: one thread per channel of a sequence, for all its tokens; grid x: channels, y: sequence.
// Bytes: reads x and writes y once per token and channel.
__global__ void __launch_bounds__(kThreads)
    ShiftKernel(const __grid_constant__ TokenShift shift,
                const __grid_constant__ DeviceSequences seqs) {
  const int s = static_cast<int>(blockIdx.y);
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  std::byte* state = seqs.state[s];
  const int32_t first = seqs.token_begin[s], end = seqs.token_begin[s + 1];
  if (i >= shift.width || state == nullptr || first == end) return;
  float* newest = reinterpret_cast<float*>(state + shift.newest) + i;
  const float mix = shift.mix == nullptr ? 0.0f : shift.mix[i];
  float x = LoadX(shift, first * shift.x_stride + i);
  float before = seqs.start_pos[s] > 0 ? *newest : shift.begins_empty ? 0.0f : x;
  for (int32_t token = first; token < end; ++token) {
    x = LoadX(shift, token * shift.x_stride + i);
    const float y = fmaf(mix, before - x, x);
    const int64_t at = token * shift.width + i;
    if (shift.y_dtype == DType::kF32) {
      static_cast<float*>(shift.y)[at] = y;
    } else {
      static_cast<uint16_t*>(shift.y)[at] = static_cast<uint16_t>(PackBF16(y, 0.0f));
    }
    before = x;
  }
  *newest = x;
}

}  // namespace

void ShiftTokens(DeviceContext& context, const BatchSequences& seqs, const TokenShift& shift) {
  const auto parts = static_cast<unsigned>((shift.width + kThreads - 1) / kThreads);
  ForSequenceParts(seqs, [&](unsigned n, const DeviceSequences& some) {
    Launch(context, ShiftKernel, dim3(parts, n), dim3(kThreads), 0, shift, some);
  });
}

}  // namespace ovq::kernels::cuda
