// Attention over a codebook on CUDA, the equations of vq_cpu.cc: nearest codes, then the attention
// kernels over codes and pending chunk, then the means.
#include <algorithm>
#include <cmath>

#include "kernels/common/cuda/cuda_device.h"
#include "kernels/common/cuda/shared.cuh"
#include "kernels/mixers/common/attention_tile.h"
#include "kernels/mixers/common/cuda/attend.h"
#include "kernels/mixers/common/cuda/attend_tile.cuh"
#include "kernels/mixers/common/cuda/members.cuh"
#include "kernels/mixers/vq/vq.h"

namespace ovq {
namespace cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;
constexpr int kRowsPerBlock = 4;  // that share a read of the codebook

struct VqKernelArgs {
  DeviceSeqs seqs;
  VqPlaces places;
  const float* rows_k;     // [n_rows][rows_stride], kv heads' keys one after another
  int64_t rows_stride;     // elements
  const float* codes;      // [n_kv_heads][blocks][head_dim][64]
  const float* half_norm;  // [n_kv_heads][slots]
  float* pending_keys;     // [n_seqs][n_kv_heads][head_dim][64] the chunk's keys as codes
  float* bias;             // [n_seqs][n_kv_heads][slots] ln count, -infinity without a count
  int32_t wave;
  int32_t n_kv_heads, head_dim, value_head_dim;
  int32_t n_codes, slots;  // codes, rounded up to whole blocks

  __device__ int64_t HeadOf(int s, int kv_head) const { return int64_t{s} * n_kv_heads + kv_head; }
  __device__ const float* Code(int kv_head, int32_t code) const {
    return codes + int64_t{kv_head} * slots * head_dim +
           static_cast<int64_t>(code / kBlockSlots) * kBlockSlots * head_dim + code % kBlockSlots;
  }
};

// The best code so far of one row; ties go to the lowest.
struct Nearest {
  float score;
  int32_t code;
};

__device__ Nearest Better(const Nearest& a, const Nearest& b) {
  return b.score > a.score || (b.score == a.score && b.code < a.code) ? b : a;
}

// The nearest of this thread's codes for every row of the block: key . code - |code|^2 / 2, the
// product one chain over the channels. keys[channel]: of kRowsPerBlock rows.
__device__ void Search(const VqKernelArgs& args, int kv_head, SharedPtr<const float4> keys,
                       Nearest (&nearest)[kRowsPerBlock]) {
  for (Nearest& row : nearest) row = {-INFINITY, 0};
  for (int32_t code = threadIdx.x; code < args.n_codes; code += kThreads) {
    const float* channel = args.Code(kv_head, code);
    float sum[kRowsPerBlock] = {};
    for (int32_t c = 0; c < args.head_dim; ++c) {
      const float x = channel[c * kBlockSlots];
      const float4 key = keys[c];
      sum[0] = fmaf(key.x, x, sum[0]);
      sum[1] = fmaf(key.y, x, sum[1]);
      sum[2] = fmaf(key.z, x, sum[2]);
      sum[3] = fmaf(key.w, x, sum[3]);
    }
    const float half_norm = args.half_norm[int64_t{kv_head} * args.slots + code];
#pragma unroll
    for (int r = 0; r < kRowsPerBlock; ++r) {
      const float score = sum[r] - half_norm;
      if (score > nearest[r].score) nearest[r] = {score, code};
    }
  }
}

// Grid (sequences, kv heads, ceil(rows of a wave / kRowsPerBlock)): the code of every row's key.
// Shared: float4 keys [head_dim], then float2 [kRowsPerBlock][kWarps].
__global__ void __launch_bounds__(kThreads) FindCodes(VqKernelArgs args) {
  const int s = static_cast<int>(blockIdx.x), kv_head = static_cast<int>(blockIdx.y);
  std::byte* session = args.seqs.state[s];
  if (session == nullptr) return;
  const WaveRows rows = RowsOfWave(args.seqs, s, kVqChunk, args.wave);
  const int32_t first = static_cast<int32_t>(blockIdx.z) * kRowsPerBlock;
  const int64_t position = rows.begin + first;
  if (position >= rows.end) return;
  const int32_t n = Smaller(rows.end - position, kRowsPerBlock);

  const SharedPtr<float4> keys = DynamicShared<float4>(0);
  const float* k =
      args.rows_k + int64_t{rows.row + first} * args.rows_stride + int64_t{kv_head} * args.head_dim;
  for (int32_t c = threadIdx.x; c < args.head_dim; c += kThreads) {
    const float* x = k + c;
    keys[c] = make_float4(x[0], n > 1 ? x[args.rows_stride] : 0,
                          n > 2 ? x[2 * args.rows_stride] : 0, n > 3 ? x[3 * args.rows_stride] : 0);
  }
  __syncthreads();
  Nearest nearest[kRowsPerBlock];
  Search(args, kv_head, keys, nearest);

  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const SharedPtr<float> scores =
      DynamicShared<float>(static_cast<uint32_t>(args.head_dim) * sizeof(float4));
  const SharedPtr<int32_t> codes = SharedCast<int32_t>(scores + kRowsPerBlock * kWarps);
  for (int r = 0; r < kRowsPerBlock; ++r) {
    Nearest best = nearest[r];
    for (int step = 16; step > 0; step /= 2) {
      const Nearest other = {__shfl_xor_sync(0xffffffffu, best.score, step),
                             __shfl_xor_sync(0xffffffffu, best.code, step)};
      best = Better(best, other);
    }
    if (lane == 0) {
      scores[r * kWarps + warp] = best.score;
      codes[r * kWarps + warp] = best.code;
    }
  }
  __syncthreads();
  const auto r = static_cast<int32_t>(threadIdx.x);
  if (r >= n) return;
  Nearest best = {-INFINITY, 0};
  for (int w = 0; w < kWarps; ++w) {
    const float score = scores[r * kWarps + w];
    const int32_t code = codes[r * kWarps + w];
    best = Better(best, {score, code});
  }
  const int64_t offset = (position + r) % kVqChunk;
  *reinterpret_cast<int32_t*>(args.places.pending_code.At(session, kv_head, offset)) = best.code;
}

// Grid (sequences, kv heads): what the attention reads beside the state, pending_keys and bias.
__global__ void __launch_bounds__(kThreads) GatherChunk(VqKernelArgs args) {
  const int s = static_cast<int>(blockIdx.x), kv_head = static_cast<int>(blockIdx.y);
  std::byte* session = args.seqs.state[s];
  if (session == nullptr) return;
  const WaveRows rows = RowsOfWave(args.seqs, s, kVqChunk, args.wave);
  if (rows.begin >= rows.end) return;
  const auto n_pending = static_cast<int32_t>(rows.end - rows.span_begin);
  const auto* code =
      reinterpret_cast<const int32_t*>(args.places.pending_code.At(session, kv_head));
  float* keys = args.pending_keys + args.HeadOf(s, kv_head) * args.head_dim * kVqChunk;
  for (int32_t i = threadIdx.x; i < args.head_dim * kVqChunk; i += kThreads) {
    const int32_t channel = i / kVqChunk, slot = i % kVqChunk;
    keys[i] = slot < n_pending ? args.Code(kv_head, code[slot])[channel * kBlockSlots] : 0;
  }
  const auto* count = reinterpret_cast<const uint32_t*>(args.places.counts.At(session, kv_head));
  const auto* log_count =
      reinterpret_cast<const float*>(args.places.log_counts.At(session, kv_head));
  float* bias = args.bias + args.HeadOf(s, kv_head) * args.slots;
  for (int32_t j = threadIdx.x; j < args.slots; j += kThreads) {
    bias[j] = count[j] > 0 ? log_count[j] : -INFINITY;
  }
}

// Grid (sequences, kv heads). One code after another, its tokens in ascending order: the order of a
// mean's sum is fixed. The sum uses the new count and the old mean.
// Shared: int32 codes [64], int32 next [64], float divisors [64].
__global__ void __launch_bounds__(kThreads) MergeCodes(VqKernelArgs args) {
  const int s = static_cast<int>(blockIdx.x), kv_head = static_cast<int>(blockIdx.y);
  std::byte* session = args.seqs.state[s];
  if (session == nullptr) return;
  const WaveRows rows = RowsOfWave(args.seqs, s, kVqChunk, args.wave);
  if (rows.end != rows.span_begin + kVqChunk) return;
  const SharedPtr<int32_t> codes = DynamicShared<int32_t>(0);
  const SharedPtr<int32_t> next = codes + kVqChunk;
  const SharedPtr<float> divisors = SharedCast<float>(next + kVqChunk);
  const auto i = static_cast<int32_t>(threadIdx.x);
  if (i < kVqChunk) {
    codes[i] = *reinterpret_cast<const int32_t*>(args.places.pending_code.At(session, kv_head, i));
  }
  __syncthreads();
  if (i < kVqChunk) {
    const int32_t members = LinkMembers(codes, kVqChunk, i, next);
    const int32_t code = codes[i];
    divisors[i] =
        members == 0
            ? 0
            : AddToCount(
                  members,
                  reinterpret_cast<uint32_t*>(args.places.counts.At(session, kv_head, code)),
                  reinterpret_cast<float*>(args.places.log_counts.At(session, kv_head, code)));
  }
  __syncthreads();
  const int32_t value_stride = ValueStride(args.value_head_dim);
  const auto* pending =
      reinterpret_cast<const float*>(args.places.pending_values.At(session, kv_head));
  auto* means = reinterpret_cast<float*>(args.places.values.At(session, kv_head));
  for (int32_t item = i; item < kVqChunk * args.value_head_dim; item += kThreads) {
    const int32_t first = item / args.value_head_dim, c = item % args.value_head_dim;
    const float divisor = divisors[first];
    if (divisor == 0) continue;
    const int32_t code = codes[first];
    float* mean = means + static_cast<int64_t>(code) * value_stride + c;
    const float old = *mean;
    float sum = 0;
    for (int32_t token = first; token >= 0;) {
      sum += pending[token * value_stride + c] - old;
      const int32_t after = next[token];
      token = after;
    }
    *mean = old + sum / divisor;
  }
}

VqKernelArgs MakeArgs(const VqArgs& args, ScratchScope& scope) {
  const AttentionShape& shape = args.shape;
  const auto heads = static_cast<size_t>(args.seqs.n_seqs()) * shape.n_kv_heads;
  const auto slots = static_cast<size_t>(args.codebook.blocks()) * kBlockSlots;
  return {.seqs = args.seqs.device,
          .places = args.state.Places(args.where),
          .rows_k = args.rows.k,
          .rows_stride = args.rows.stride,
          .codes = args.codebook.keys.as<const float>(),
          .half_norm = args.codebook.half_norm.as<const float>(),
          .pending_keys = scope.Allocate<float>(heads * shape.head_dim * kVqChunk),
          .bias = scope.Allocate<float>(heads * slots),
          .wave = 0,
          .n_kv_heads = shape.n_kv_heads,
          .head_dim = shape.head_dim,
          .value_head_dim = shape.value_head_dim,
          .n_codes = static_cast<int32_t>(args.codebook.n_codes),
          .slots = static_cast<int32_t>(slots)};
}

// Floats [n_seqs][n_kv_heads][per_head], in blocks of per_block.
BlockPlaces InScratch(float* data, const VqKernelArgs& args, int64_t per_head, int64_t per_block) {
  constexpr int64_t kBytes = sizeof(float);
  return {.shared = reinterpret_cast<std::byte*>(data),
          .seq_stride = args.n_kv_heads * per_head * kBytes,
          .offset = 0,
          .head_stride = per_head * kBytes,
          .block_stride = per_block * kBytes,
          .ring = 0};
}

AttentionBlocks Blocks(const VqArgs& args, const VqKernelArgs& kernel) {
  const int64_t block = int64_t{kBlockSlots} * kernel.head_dim;
  AttentionBlocks blocks;
  blocks.shape = args.shape;
  blocks.dtype = DType::kF32;
  blocks.compute_dtype = args.rows.out_dtype;
  blocks.wave_span = kVqChunk;
  blocks.fixed_live = kernel.n_codes;
  blocks.dictionary_keys = InScratch(args.codebook.keys.as<float>(), kernel,
                                     int64_t{kernel.slots} * kernel.head_dim, block);
  blocks.dictionary_keys.seq_stride = 0;  // all sessions read one codebook
  blocks.dictionary_values = InState(kernel.places.values);
  blocks.dictionary_bias = InScratch(kernel.bias, kernel, kernel.slots, kBlockSlots);
  blocks.recent_from_span = true;
  blocks.recent_keys = InScratch(kernel.pending_keys, kernel, block, block);
  blocks.recent_values = InState(kernel.places.pending_values);
  return blocks;
}

}  // namespace
}  // namespace cuda

void VqAttentionCuda(DeviceContext& context, const VqArgs& args) {
  ScratchScope scope(context);
  cuda::VqKernelArgs kernel = cuda::MakeArgs(args, scope);
  const cuda::AttentionBlocks blocks = cuda::Blocks(args, kernel);
  const auto heads = static_cast<unsigned>(kernel.n_kv_heads),
             n_seqs = static_cast<unsigned>(args.seqs.n_seqs());
  const int most_rows = std::min(kVqChunk, args.seqs.longest_run());
  const dim3 rows_grid(
      n_seqs, heads,
      static_cast<unsigned>((most_rows + cuda::kRowsPerBlock - 1) / cuda::kRowsPerBlock));
  const dim3 heads_grid(n_seqs, heads);
  const size_t search_bytes = static_cast<size_t>(kernel.head_dim) * sizeof(float4) +
                              cuda::kRowsPerBlock * cuda::kWarps * sizeof(cuda::Nearest);
  const size_t merge_bytes = kVqChunk * 3 * sizeof(float);
  const int n_waves = Waves(args.seqs, kVqChunk);
  for (kernel.wave = 0; kernel.wave < n_waves; ++kernel.wave) {
    cuda::Launch(context, cuda::FindCodes, rows_grid, cuda::kThreads, search_bytes, kernel);
    cuda::Launch(context, cuda::GatherChunk, heads_grid, cuda::kThreads, 0, kernel);
    cuda::StoreRecent(context, blocks, args.seqs, args.rows, kernel.wave, /*keys_too=*/false);
    cuda::AttendWave(context, blocks, args.seqs, args.rows, kernel.wave);
    cuda::Launch(context, cuda::MergeCodes, heads_grid, cuda::kThreads, merge_bytes, kernel);
  }
}

}  // namespace ovq
