// One head of Transformer-VQ's attention on CUDA, the equations of transformer_vq_cpu.cc. For each
// wave: the codes of its keys; the weights of its tokens, whose values are stored meanwhile; the
// weighted sums; and where a span ends the means, then the counts.
#include <algorithm>
#include <cmath>

#include "kernels/common/cuda/cuda_device.h"
#include "kernels/common/cuda/shared.cuh"
#include "kernels/mixers/common/cuda/attend_tile.cuh"
#include "kernels/mixers/common/cuda/sequence_parts.h"
#include "kernels/mixers/transformer_vq/transformer_vq.h"
#include "kernels/ops/cuda/rows.cuh"

namespace ovq::kernels {
namespace cuda {
namespace {

constexpr int kTokenThreads = 256;
// In sums, a thread has four channels of a slice and every kGroups-th slot.
constexpr int kLanes = kValueSlice / 4;
constexpr int kGroups = 16;
constexpr int kSumThreads = kLanes * kGroups;
constexpr int kMostTokens = 8;  // tokens of a thread block, which share a read of the values
constexpr int kSpan = kTransformerVqSpan;

struct Args : TransformerVqArgs {
  float* weights;  // [n_tokens][slots]
  int32_t n_tokens;
  DeviceWave wave;
};

// One token of a wave, or one sequence's tokens.
struct Place {
  float* values;
  uint32_t* counts;
  int32_t* codes;
  WaveTokens tokens;
  int64_t row, position;  // of the `offset`-th token
};

// False: the sequence has no such token.
__device__ bool Find(const Args& args, int sequence, int32_t offset, Place& place) {
  std::byte* session = args.wave.seqs.state[sequence];
  if (session == nullptr) return false;
  place.values = reinterpret_cast<float*>(session + args.values);
  place.counts = reinterpret_cast<uint32_t*>(session + args.counts);
  place.codes = reinterpret_cast<int32_t*>(session + args.codes);
  place.tokens = TokensInWave(args.wave, sequence, kSpan);
  place.row = int64_t{place.tokens.row} + offset;
  place.position = place.tokens.begin + offset;
  return place.position < place.tokens.end;
}

// Grid (tokens of a wave, sequences). Finds the codes. Shared: float2 (score, code) of every warp.
__global__ void __launch_bounds__(kTokenThreads) FindCodes(const Args args) {
  Place at;
  if (!Find(args, static_cast<int>(blockIdx.y), static_cast<int32_t>(blockIdx.x), at)) return;
  const int32_t n_codes = args.shape.n_codes;
  const float* products = args.scores + (args.n_tokens + at.row) * n_codes;
  Best best = NoBest();
  for (int32_t n = static_cast<int32_t>(threadIdx.x); n < n_codes; n += kTokenThreads) {
    const float score = products[n] - args.half_norms[n];
    if (score > best.score) best = {score, n};
  }
  for (int apart = 16; apart > 0; apart /= 2) best = BetterSlotOfLanes(best, apart);
  const SharedPtr<float2> of_warps = DynamicShared<float2>(0);
  if (threadIdx.x % kWarp == 0) {
    of_warps[threadIdx.x / kWarp] = make_float2(best.score, __int_as_float(best.slot));
  }
  __syncthreads();
  if (threadIdx.x > 0) return;
  for (int warp = 1; warp < kTokenThreads / kWarp; ++warp) {
    const float2 other = of_warps[warp];
    best = BetterSlot(best, {other.x, __float_as_int(other.y)});
  }
  at.codes[at.position % args.shape.ring()] = best.slot;
}

// A slot's exponent (-infinity if closed) and its multiplicity.
struct Exponent {
  float value, times;
};
__device__ inline Exponent ComputeExponent(const Args& args, const Place& at, int64_t first,
                                           int32_t slot) {
  const TransformerVqShape& shape = args.shape;
  const float* scores = args.scores + at.row * shape.n_codes;
  if (slot < shape.n_means()) {
    const uint32_t count = at.counts[slot];
    return {count > 0 ? scores[slot] : -INFINITY, static_cast<float>(count)};
  }
  // The position, `first` or later, that this slot of the ring holds.
  const int32_t ring = shape.ring(), place = slot - shape.n_means();
  const auto begin = static_cast<int32_t>(first % ring);
  const int64_t position = first + (place >= begin ? place - begin : place - begin + ring);
  if (position > at.position) return {-INFINITY, 0};
  const int64_t distance = at.position - position;
  const bool near = distance <= shape.mem_len;
  if (!near && !shape.has_means) return {-INFINITY, 0};
  const float bias = near ? args.relative[at.row * (shape.mem_len + 1) + distance] : 0.0f;
  return {scores[at.codes[place]] + bias, 1};
}

// x / (1 + e^-x), with the exponential of -|x| alone: it cannot overflow.
__device__ inline float Silu(float x) {
  const float e = expf(-fabsf(x));
  return x * ((x < 0 ? e : 1.0f) / (1.0f + e));
}

__device__ inline void StoreValue(const Args& args, const Place& at) {
  const TransformerVqShape& shape = args.shape;
  const float* from = args.tokens + at.row * args.token_stride;
  const int64_t slot = shape.n_means() + at.position % shape.ring();
  for (int32_t c = static_cast<int32_t>(threadIdx.x); c < shape.value_dim; c += kTokenThreads) {
    const int64_t slice = c / kValueSlice;
    at.values[(slice * shape.slots() + slot) * kValueSlice + c % kValueSlice] = Silu(from[c]);
  }
}

// Grid (tokens of a wave, sequences). Computes the weights. Shared: two floats of every warp. A
// thread has the same slots in each pass.
__global__ void __launch_bounds__(kTokenThreads) Weigh(const Args args) {
  Place at;
  if (!Find(args, static_cast<int>(blockIdx.y), static_cast<int32_t>(blockIdx.x), at)) return;
  StoreValue(args, at);
  const int32_t slots = args.shape.slots(), begin = static_cast<int32_t>(threadIdx.x);
  const int64_t first = args.shape.first(at.tokens.span_begin);
  float* weights = args.weights + at.row * slots;
  float highest = -INFINITY;
  for (int32_t slot = begin; slot < slots; slot += kTokenThreads) {
    weights[slot] = ComputeExponent(args, at, first, slot).value;
    highest = fmaxf(highest, weights[slot]);
  }
  constexpr int kWarps = kTokenThreads / kWarp;
  const SharedPtr<float> partial = DynamicShared<float>(0);
  const float max =
      BlockFold(highest, partial, kWarps, [](float a, float b) { return fmaxf(a, b); });
  float sum = 0;
  for (int32_t slot = begin; slot < slots; slot += kTokenThreads) {
    const float times = slot < args.shape.n_means() ? static_cast<float>(at.counts[slot]) : 1.0f;
    weights[slot] = times * expf(weights[slot] - max);
    sum += weights[slot];
  }
  const float factor = 1.0f / BlockSum(sum, partial + kWarps);
  for (int32_t slot = begin; slot < slots; slot += kTokenThreads) weights[slot] *= factor;
}

// Grid (slices, tiles of kTokens tokens of a wave, sequences). A token's sum over all slots: thread
// group g adds the slots g, g + kGroups, ... in a chain, then the groups' parts are added in order.
// Shared: float4 [kTokens][kGroups][kLanes].
template <int kTokens>
__global__ void __launch_bounds__(kSumThreads) SumSlots(const Args args) {
  Place at;
  const auto slice = static_cast<int64_t>(blockIdx.x);
  const int32_t offset = static_cast<int32_t>(blockIdx.y) * kTokens;
  if (!Find(args, static_cast<int>(blockIdx.z), offset, at)) return;
  const int32_t n_tokens = Smaller(at.tokens.end - at.position, kTokens),
                slots = args.shape.slots();
  const int lane = static_cast<int>(threadIdx.x) % kLanes;
  const int group = static_cast<int>(threadIdx.x) / kLanes;
  const float* values = at.values + slice * slots * kValueSlice + lane * 4;
  const float* weights = args.weights + at.row * slots;
  float4 sum[kTokens];
#pragma unroll
  for (int r = 0; r < kTokens; ++r) sum[r] = make_float4(0, 0, 0, 0);
  for (int32_t slot = group; slot < slots; slot += kGroups) {
    const float4 v = *reinterpret_cast<const float4*>(values + int64_t{slot} * kValueSlice);
#pragma unroll
    for (int r = 0; r < kTokens; ++r) {
      if (r >= n_tokens) break;
      const float w = weights[int64_t{r} * slots + slot];
      sum[r].x = fmaf(w, v.x, sum[r].x);
      sum[r].y = fmaf(w, v.y, sum[r].y);
      sum[r].z = fmaf(w, v.z, sum[r].z);
      sum[r].w = fmaf(w, v.w, sum[r].w);
    }
  }
  const SharedPtr<float4> parts = DynamicShared<float4>(0);
#pragma unroll
  for (int r = 0; r < kTokens; ++r) parts[r * kSumThreads + static_cast<int>(threadIdx.x)] = sum[r];
  __syncthreads();
  if (group >= n_tokens) return;
  float4 total = parts[group * kSumThreads + lane];
  for (int g = 1; g < kGroups; ++g) {
    const float4 part = parts[group * kSumThreads + g * kLanes + lane];
    total = make_float4(total.x + part.x, total.y + part.y, total.z + part.z, total.w + part.w);
  }
  const int64_t channel = slice * kValueSlice + lane * 4, n = args.shape.value_dim;
  if (channel < n) {
    Store4(args.tokens + (at.row + group) * args.token_stride, channel, n, /*aligned=*/false,
           total);
  }
}

// The i-th value that leaves the ring for the means, in thread i < kSpan: its code, the code's
// count including it, and whether no later one has the same code. All threads of a block of kSpan
// must call it. False: the span is not full. Shared: int32 [kSpan].
struct Leaving {
  int32_t slot = 0;
  int32_t code = -1;  // -1: no value leaves
  uint32_t count = 0;
  bool is_last = true;
};
__device__ bool FindLeaving(const Args& args, const Place& at, SharedPtr<int32_t> codes,
                            Leaving& leaving) {
  const int64_t next = at.tokens.span_begin + kSpan;
  if (at.tokens.end != next || !args.shape.has_means) return false;
  const auto i = static_cast<int32_t>(threadIdx.x);
  const int64_t position = args.shape.first(at.tokens.span_begin) + i;
  if (position < args.shape.first(next)) {
    leaving.slot = static_cast<int32_t>(position % args.shape.ring());
    leaving.code = at.codes[leaving.slot];
  }
  codes[i] = leaving.code;
  __syncthreads();
  uint32_t same = 0;
  for (int32_t j = 0; j < kSpan; ++j) {
    const int32_t other = codes[j];
    if (other != leaving.code) continue;
    if (j <= i) ++same;
    if (j > i) leaving.is_last = false;
  }
  if (leaving.code < 0) return true;
  const uint32_t before = at.counts[leaving.code], most = 0xffffffffu;
  leaving.count = before > most - same ? most : before + same;
  return true;
}

// Grid (slices, sequences), one thread per channel. Shared: int32 [kSpan], int2 (code, slot) and
// float rates [kSpan].
__global__ void __launch_bounds__(kSpan) MergeMeans(const Args args) {
  static_assert(kSpan == kValueSlice, "a thread for each value that leaves and for each channel");
  Place at;
  if (!Find(args, static_cast<int>(blockIdx.y), 0, at)) return;
  const SharedPtr<int2> places = DynamicShared<int2>(0);
  const SharedPtr<float> rates = SharedCast<float>(places + kSpan);
  Leaving leaving;
  const auto i = static_cast<int32_t>(threadIdx.x);
  if (!FindLeaving(args, at, SharedCast<int32_t>(rates + kSpan), leaving)) return;
  places[i] = make_int2(leaving.code, leaving.slot);
  rates[i] = leaving.code < 0 ? 0.0f : 1.0f / static_cast<float>(leaving.count);
  __syncthreads();
  float* values = at.values + int64_t{blockIdx.x} * args.shape.slots() * kValueSlice + i;
  for (int32_t j = 0; j < kSpan; ++j) {
    const int2 place = places[j];
    if (place.x < 0) break;
    const float rate = rates[j];
    float& mean = values[int64_t{place.x} * kValueSlice];
    const float value = values[int64_t{args.shape.n_means() + place.y} * kValueSlice];
    mean = fmaf(value - mean, rate, mean);
  }
}

// Grid (sequences). Shared: int32 [kSpan].
__global__ void __launch_bounds__(kSpan) CountMerged(const Args args) {
  Place at;
  if (!Find(args, static_cast<int>(blockIdx.x), 0, at)) return;
  Leaving leaving;
  if (!FindLeaving(args, at, DynamicShared<int32_t>(0), leaving)) return;
  // All threads have read the old counts.
  __syncthreads();
  if (leaving.code >= 0 && leaving.is_last) at.counts[leaving.code] = leaving.count;
}

// The launches of one wave for `n` sequences.
void RunWave(DeviceContext& context, const Args& args, unsigned n, unsigned most_tokens) {
  const auto slices = static_cast<unsigned>(args.shape.slices());
  const int sum_tokens = most_tokens == 1 ? 1 : kMostTokens;
  const auto sum_slots = sum_tokens == 1 ? SumSlots<1> : SumSlots<kMostTokens>;
  const dim3 tokens_grid(most_tokens, n),
      sums_grid(slices, (most_tokens + sum_tokens - 1) / sum_tokens, n);
  Launch(context, FindCodes, tokens_grid, kTokenThreads, kTokenThreads / kWarp * sizeof(float2),
         args);
  Launch(context, Weigh, tokens_grid, kTokenThreads, 2 * kTokenThreads / kWarp * sizeof(float),
         args);
  Launch(context, sum_slots, sums_grid, kSumThreads, sum_tokens * kSumThreads * sizeof(float4),
         args);
  if (!args.shape.has_means) return;
  Launch(context, MergeMeans, dim3(slices, n), kSpan,
         kSpan * (sizeof(int2) + sizeof(float) + sizeof(int32_t)), args);
  Launch(context, CountMerged, n, kSpan, kSpan * sizeof(int32_t), args);
}

}  // namespace
}  // namespace cuda

void TransformerVqCuda(DeviceContext& context, const TransformerVqArgs& layer_args) {
  using namespace cuda;
  ScratchScope scope(context);
  const BatchSequences& batch = layer_args.seqs;
  const int64_t n_tokens = batch.n_tokens();
  Args args = {layer_args,
               scope.Allocate<float>(static_cast<size_t>(n_tokens * layer_args.shape.slots())),
               static_cast<int32_t>(n_tokens),
               {batch.device, 0}};
  const auto most_tokens = static_cast<unsigned>(std::min(kSpan, batch.max_sequence_length()));
  const int n_waves = CountWaves(batch, kSpan);
  for (int wave = 0; wave < n_waves; ++wave) {
    args.wave.index = wave;
    ForSequenceParts(batch, [&](unsigned n, const DeviceSequences& seqs) {
      args.wave.seqs = seqs;
      RunWave(context, args, n, most_tokens);
    });
  }
}

}  // namespace ovq::kernels
