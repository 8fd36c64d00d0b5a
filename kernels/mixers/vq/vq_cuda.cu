// Attention over a codebook on CUDA, the equations of vq_cpu.cc: nearest codes, then the attention
// kernels over codes and pending chunk, then the means.
#include <algorithm>

#include "kernels/common/cuda/cuda_device.h"
#include "kernels/common/cuda/shared.cuh"
#include "kernels/mixers/common/cuda/attend_tile.cuh"
#include "kernels/mixers/common/cuda/full_chunk.cuh"
#include "kernels/mixers/vq/vq.h"

namespace ovq::kernels {
namespace cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;
constexpr int kTokensPerBlock = 4;  // tokens that share a read of the codebook

// Finds the nearest of this thread's codes for every token of the thread block: argmax key . code -
// |code|^2 / 2, the product one chain over the channels. keys[channel]: kTokensPerBlock tokens.
__device__ void Search(const VqAttentionArgs& args, int kv_head, SharedPtr<const float4> keys,
                       Best (&nearest)[kTokensPerBlock]) {
  for (Best& row : nearest) row = NoBest();
  const int32_t n_codes = args.blocks.fixed_live;
  const float* half_norm = args.half_norm + kv_head * NumBlocks(n_codes) * kBlockSlots;
  for (int32_t code = threadIdx.x; code < n_codes; code += kThreads) {
    const float* channel = CodeAt(args.blocks, kv_head, code);
    float sum[kTokensPerBlock] = {};
    for (int32_t c = 0; c < args.blocks.shape.head_dim; ++c) {
      const float x = channel[c * kBlockSlots];
      const float4 key = keys[c];
      sum[0] = fmaf(key.x, x, sum[0]);
      sum[1] = fmaf(key.y, x, sum[1]);
      sum[2] = fmaf(key.z, x, sum[2]);
      sum[3] = fmaf(key.w, x, sum[3]);
    }
#pragma unroll
    for (int r = 0; r < kTokensPerBlock; ++r) {
      const float score = sum[r] - half_norm[code];
      if (score > nearest[r].score) nearest[r] = {score, code};
    }
  }
}

// Grid (sequences, kv heads, ceil(tokens of a wave / kTokensPerBlock)). Finds the code of every
// token's key. Shared: float4 keys [head_dim], then float2 (score, code) [kTokensPerBlock][kWarps].
__global__ void __launch_bounds__(kThreads) FindCodes(const __grid_constant__ VqAttentionArgs args,
                                                      const __grid_constant__ DeviceWave wave) {
  const int s = static_cast<int>(blockIdx.x), kv_head = static_cast<int>(blockIdx.y);
  std::byte* session = wave.seqs.state[s];
  if (session == nullptr) return;
  const WaveTokens tokens = TokensInWave(wave, s, kVqChunk);
  const int32_t first = static_cast<int32_t>(blockIdx.z) * kTokensPerBlock;
  const int64_t position = tokens.begin + first, stride = args.tokens.stride;
  if (position >= tokens.end) return;
  const int32_t n = Smaller(tokens.end - position, kTokensPerBlock);

  const int head_dim = args.blocks.shape.head_dim;
  const SharedPtr<float4> keys = DynamicShared<float4>(0);
  const float* k =
      args.tokens.k + int64_t{tokens.row + first} * stride + int64_t{kv_head} * head_dim;
  for (int32_t c = threadIdx.x; c < head_dim; c += kThreads) {
    const float* x = k + c;
    keys[c] = make_float4(x[0], n > 1 ? x[stride] : 0, n > 2 ? x[2 * stride] : 0,
                          n > 3 ? x[3 * stride] : 0);
  }
  __syncthreads();
  Best nearest[kTokensPerBlock];
  Search(args, kv_head, keys, nearest);

  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const SharedPtr<float2> of_warps = SharedCast<float2>(keys + head_dim);
  for (int r = 0; r < kTokensPerBlock; ++r) {
    Best best = nearest[r];
    for (int apart = 16; apart > 0; apart /= 2) best = BetterSlotOfLanes(best, apart);
    if (lane == 0) {
      of_warps[r * kWarps + warp] = make_float2(best.score, __int_as_float(best.slot));
    }
  }
  __syncthreads();
  const auto r = static_cast<int32_t>(threadIdx.x);
  if (r >= n) return;
  Best best = NoBest();
  for (int w = 0; w < kWarps; ++w) {
    const float2 other = of_warps[r * kWarps + w];
    best = BetterSlot(best, {other.x, __float_as_int(other.y)});
  }
  const int64_t offset = (position + r) % kVqChunk;
  *args.blocks.best_slot.At<int32_t>(session, kv_head, offset) = best.slot;
}

// Grid (sequences, kv heads). Fills the scratch blocks that attention reads beside the state: the
// chunk's keys as codes, and the biases.
__global__ void __launch_bounds__(kThreads)
    GatherChunk(const __grid_constant__ VqAttentionArgs args,
                const __grid_constant__ DeviceWave wave) {
  const AttentionBlocks& blocks = args.blocks;
  const int s = static_cast<int>(blockIdx.x), kv_head = static_cast<int>(blockIdx.y);
  std::byte* session = wave.seqs.state[s];
  if (session == nullptr) return;
  const WaveTokens tokens = TokensInWave(wave, s, kVqChunk);
  if (tokens.begin >= tokens.end) return;
  const auto n_pending = static_cast<int32_t>(tokens.end - tokens.span_begin);
  const int32_t* code = blocks.best_slot.At<int32_t>(session, kv_head);
  float* keys = blocks.recent_keys.At<float>(session, s, kv_head, 0);
  for (int32_t i = threadIdx.x; i < blocks.shape.head_dim * kVqChunk; i += kThreads) {
    const int32_t channel = i / kVqChunk, slot = i % kVqChunk;
    keys[i] = slot < n_pending ? CodeAt(blocks, kv_head, code[slot])[channel * kBlockSlots] : 0;
  }
  const uint32_t* count = blocks.counts.At<uint32_t>(session, kv_head);
  const float* log_count = blocks.log_counts.At<float>(session, kv_head);
  float* bias = blocks.dictionary_bias.At<float>(session, s, kv_head, 0);
  const auto slots = static_cast<int32_t>(NumBlocks(blocks.fixed_live) * kBlockSlots);
  for (int32_t j = threadIdx.x; j < slots; j += kThreads) {
    bias[j] = count[j] > 0 ? log_count[j] : -INFINITY;
  }
}

}  // namespace
}  // namespace cuda

void VqAttentionCuda(DeviceContext& context, const VqAttentionArgs& args) {
  const int most_rows = std::min(kVqChunk, args.seqs.max_sequence_length());
  const dim3 rows_grid =
      cuda::HeadGrid(args, (most_rows + cuda::kTokensPerBlock - 1) / cuda::kTokensPerBlock);
  const size_t search_bytes = static_cast<size_t>(args.blocks.shape.head_dim) * sizeof(float4) +
                              cuda::kTokensPerBlock * cuda::kWarps * sizeof(float2);
  AttendWavesCuda(context, args,
                  [&](const DeviceWave& wave) {
                    cuda::Launch(context, cuda::FindCodes, rows_grid, cuda::kThreads, search_bytes,
                                 args, wave);
                    cuda::Launch(context, cuda::GatherChunk, cuda::HeadGrid(args), cuda::kThreads,
                                 0, args, wave);
                  },
                  {});
}

}  // namespace ovq::kernels
