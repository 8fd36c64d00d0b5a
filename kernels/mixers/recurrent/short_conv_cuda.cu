// Short convolution (short_conv.h) on CUDA, as a chain of fused multiply-adds from the oldest input
// to the newest.
#include <algorithm>

#include "kernels/common/cuda/cuda_device.h"
#include "kernels/mixers/common/cuda/sequence_parts.h"
#include "kernels/mixers/recurrent/short_conv.h"
#include "kernels/ops/cuda/rows.cuh"

namespace ovq::kernels::cuda {
namespace {

constexpr int kThreads = 128;
// A long sequence's tokens are divided among blocks.
constexpr int kTokensPerBlock = 16;
constexpr int kMaxTokenParts = 64;

__device__ inline int64_t ThreadChannel() { return int64_t{blockIdx.x} * kThreads + threadIdx.x; }

// A sequence's tokens in the batch.
struct SequenceTokens {
  const float* u;  // u of its first token
  float* kept;
  int64_t start;
  int32_t first, n_tokens;

  __device__ SequenceTokens(const ShortConv& conv, const DeviceSequences& seqs, int s)
      : start(seqs.start_pos[s]),
        first(seqs.token_begin[s]),
        n_tokens(seqs.state[s] == nullptr ? 0 : seqs.token_begin[s + 1] - first) {
    u = conv.u + first * conv.u_stride;
    kept = n_tokens == 0 ? nullptr : reinterpret_cast<float*>(seqs.state[s] + conv.newest);
  }
};

__device__ float ConvolveChannel(const ShortConv& conv, const SequenceTokens& sequence,
                                 int32_t token, int64_t filter, int64_t channel) {
  if (conv.weight == nullptr) return sequence.u[token * conv.u_stride + channel];
  const int n_kept_tokens = conv.conv_size - 1;
  float sum = conv.bias == nullptr ? 0.0f : conv.bias[filter];
  for (int j = 0; j < conv.conv_size; ++j) {
    const int before = n_kept_tokens - j;
    const float input =
        token >= before
            ? sequence.u[(token - before) * conv.u_stride + channel]
            : sequence.kept[(sequence.start + token + j) % n_kept_tokens * conv.width + channel];
    sum = fmaf(conv.weight[j * conv.n_filters + filter], input, sum);
  }
  return sum;
}

__device__ void StoreNewestInputs(const ShortConv& conv, const SequenceTokens& sequence,
                                  int64_t channel) {
  const int n_kept_tokens = conv.conv_size - 1;
  for (int32_t token = max(0, sequence.n_tokens - n_kept_tokens); token < sequence.n_tokens;
       ++token) {
    sequence.kept[(sequence.start + token) % n_kept_tokens * conv.width + channel] =
        sequence.u[token * conv.u_stride + channel];
  }
}

// Launch: one thread for each channel; grid x: channels, y: sequences, z: every gridDim.z-th token.
// A block that has all tokens also stores the newest inputs; otherwise other blocks might still
// read the old ones, so StoreNewestInputsKernel does it.
__global__ void __launch_bounds__(kThreads)
    ConvolveKernel(const __grid_constant__ ShortConv conv,
                   const __grid_constant__ DeviceSequences seqs) {
  const int64_t channel = ThreadChannel();
  if (channel >= conv.width) return;
  const SequenceTokens sequence(conv, seqs, static_cast<int>(blockIdx.y));
  for (auto token = static_cast<int32_t>(blockIdx.z); token < sequence.n_tokens;
       token += static_cast<int32_t>(gridDim.z)) {
    float* y = conv.y + (sequence.first + token) * conv.n_filters;
    for (int64_t filter = channel; filter < conv.n_filters; filter += conv.width) {
      y[filter] = Silu(ConvolveChannel(conv, sequence, token, filter, channel));
    }
  }
  if (gridDim.z == 1) StoreNewestInputs(conv, sequence, channel);
}

// Launch: after ConvolveKernel; grid x: channels, y: sequences.
__global__ void __launch_bounds__(kThreads)
    StoreNewestInputsKernel(const __grid_constant__ ShortConv conv,
                            const __grid_constant__ DeviceSequences seqs) {
  const int64_t channel = ThreadChannel();
  if (channel >= conv.width) return;
  StoreNewestInputs(conv, SequenceTokens(conv, seqs, static_cast<int>(blockIdx.y)), channel);
}

}  // namespace

void Convolve(DeviceContext& context, const BatchSequences& seqs, const ShortConv& conv) {
  const auto channels = static_cast<unsigned>((conv.width + kThreads - 1) / kThreads);
  const int token_parts = std::clamp(
      (seqs.max_sequence_length() + kTokensPerBlock - 1) / kTokensPerBlock, 1, kMaxTokenParts);
  ForSequenceParts(seqs, [&](unsigned n, const DeviceSequences& some) {
    Launch(context, ConvolveKernel, dim3(channels, n, static_cast<unsigned>(token_parts)),
           dim3(kThreads), 0, conv, some);
    if (token_parts == 1 || conv.conv_size == 1) return;
    Launch(context, StoreNewestInputsKernel, dim3(channels, n), dim3(kThreads), 0, conv, some);
  });
}

}  // namespace ovq::kernels::cuda
