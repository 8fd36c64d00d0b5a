// Short convolution on CUDA, the equation of short_conv.h: a chain of fused multiply-adds from the
// oldest input to the newest.
#include <algorithm>

#include "kernels/common/cuda/cuda_device.h"
#include "kernels/mixers/recurrent/short_conv.h"
#include "kernels/ops/cuda/rows.cuh"

namespace ovq::cuda {
namespace {

constexpr int kThreads = 128;
// Blocks that share the rows of a long run.
constexpr int kRowsPerBlock = 16;
constexpr int kMaxRowParts = 64;

__device__ inline int64_t ChannelOfThread() { return int64_t{blockIdx.x} * kThreads + threadIdx.x; }

// A sequence's part of a step.
struct Run {
  const float* u;  // its first row
  float* kept;
  int64_t start;
  int32_t first, n_rows;

  __device__ Run(const ShortConv& conv, const DeviceSeqs& seqs, int s)
      : start(seqs.start_pos[s]),
        first(seqs.row_begin[s]),
        n_rows(seqs.state[s] == nullptr ? 0 : seqs.row_begin[s + 1] - first) {
    u = conv.u + first * conv.u_stride;
    kept = n_rows == 0 ? nullptr : reinterpret_cast<float*>(seqs.state[s] + conv.newest);
  }
};

__device__ float Convolved(const ShortConv& conv, const Run& run, int32_t row, int64_t filter,
                           int64_t channel) {
  if (conv.weight == nullptr) return run.u[row * conv.u_stride + channel];
  const int n_kept = conv.taps - 1;
  float sum = conv.bias == nullptr ? 0.0f : conv.bias[filter];
  for (int j = 0; j < conv.taps; ++j) {
    const int before = n_kept - j;
    const float input = row >= before
                            ? run.u[(row - before) * conv.u_stride + channel]
                            : run.kept[(run.start + row + j) % n_kept * conv.width + channel];
    sum = fmaf(conv.weight[j * conv.n_filters + filter], input, sum);
  }
  return sum;
}

__device__ void KeepNewest(const ShortConv& conv, const Run& run, int64_t channel) {
  const int n_kept = conv.taps - 1;
  for (int32_t row = max(0, run.n_rows - n_kept); row < run.n_rows; ++row) {
    run.kept[(run.start + row) % n_kept * conv.width + channel] =
        run.u[row * conv.u_stride + channel];
  }
}

// Launch: a thread to a channel; grid x: channels, y: sequence, z: every gridDim.z-th row. Where
// one block has all rows it also keeps the newest; else others might still read the old ones.
__global__ void __launch_bounds__(kThreads)
    ConvolveKernel(const __grid_constant__ ShortConv conv,
                   const __grid_constant__ DeviceSeqs seqs) {
  const int64_t channel = ChannelOfThread();
  if (channel >= conv.width) return;
  const Run run(conv, seqs, static_cast<int>(blockIdx.y));
  for (auto row = static_cast<int32_t>(blockIdx.z); row < run.n_rows;
       row += static_cast<int32_t>(gridDim.z)) {
    float* y = conv.y + (run.first + row) * conv.n_filters;
    for (int64_t filter = channel; filter < conv.n_filters; filter += conv.width) {
      y[filter] = Silu(Convolved(conv, run, row, filter, channel));
    }
  }
  if (gridDim.z == 1) KeepNewest(conv, run, channel);
}

// After ConvolveKernel; grid x: channels, y: sequence.
__global__ void __launch_bounds__(kThreads)
    KeepNewestKernel(const __grid_constant__ ShortConv conv,
                     const __grid_constant__ DeviceSeqs seqs) {
  const int64_t channel = ChannelOfThread();
  if (channel >= conv.width) return;
  KeepNewest(conv, Run(conv, seqs, static_cast<int>(blockIdx.y)), channel);
}

}  // namespace

void Convolve(DeviceContext& context, const StepSeqs& seqs, const ShortConv& conv) {
  const auto channels = static_cast<unsigned>((conv.width + kThreads - 1) / kThreads);
  const auto sequences = static_cast<unsigned>(seqs.n_seqs());
  const int row_parts =
      std::clamp((seqs.longest_run() + kRowsPerBlock - 1) / kRowsPerBlock, 1, kMaxRowParts);
  Launch(context, ConvolveKernel, dim3(channels, sequences, static_cast<unsigned>(row_parts)),
         dim3(kThreads), 0, conv, seqs.device);
  if (row_parts == 1 || conv.taps == 1) return;
  Launch(context, KeepNewestKernel, dim3(channels, sequences), dim3(kThreads), 0, conv,
         seqs.device);
}

}  // namespace ovq::cuda
