// Keys and values of tokens to their recent slots: of a wave, and in a batch of one token a
// sequence together with the preparation of the heads.
#include <array>
#include <bit>

#include "kernels/common/cuda/cuda_device.h"
#include "kernels/mixers/common/cuda/attend_launch.h"
#include "kernels/mixers/common/cuda/attend_tile.cuh"
#include "kernels/mixers/common/slots.h"
#include "kernels/ops/cuda/heads.cuh"

namespace ovq::kernels {
namespace cuda {
namespace {

constexpr int kThreads = 128;
// Slots of a thread block, whose keys fill a sector (32 bytes) of each channel in bfloat16.
constexpr int kRunSlots = 16;

// The elements of 16 bytes: slots of a key's channel, or channels of a value.
template <class T>
inline constexpr int kUnit = 16 / sizeof(T);

// Stores the elements [begin, end) of a unit.
template <class T>
__device__ inline void StoreUnit(const std::array<T, kUnit<T>>& unit, int begin, int end, T* to) {
  if (begin <= 0 && end >= kUnit<T>) {
    *reinterpret_cast<uint4*>(to) = std::bit_cast<uint4>(unit);
    return;
  }
#pragma unroll
  for (int i = 0; i < kUnit<T>; ++i) {
    if (i >= begin && i < end) to[i] = unit[i];
  }
}

// Rows of one head whose tokens go to the slots [begin, end) of a run of kRunSlots slots of one
// block, in shared memory as they are: channel c of slot i is element At(i, c). Channels of the
// upper slots lie 16 further, modulo 32, so that a warp reads 16 channels of two slots, eight
// apart, from different banks.
struct RunRows {
  const float* rows;  // of slot `begin`
  int64_t stride;
  int32_t begin, end;
  int32_t n_channels;
  float factor;

  __host__ __device__ static constexpr int width(int n_channels) {
    return (n_channels + 31) / 32 * 32;
  }
  static constexpr size_t SharedBytes(int n_channels) {
    return (static_cast<size_t>(width(n_channels)) + 1) * kRunSlots * sizeof(float);
  }
  __device__ SharedPtr<float> At(int slot, int channel) const {
    return DynamicShared<float>(0) + slot * width(n_channels) + (channel ^ (slot & 8) * 2);
  }
  // 1 / scale of a slot, behind the rows.
  __device__ SharedPtr<float> Inverse(int slot) const {
    return DynamicShared<float>(0) + kRunSlots * width(n_channels) + slot;
  }

  // aligned: groups of four channels lie on 16 bytes.
  __device__ void Load(bool aligned) const {
    const int quads = (n_channels + 3) / 4;
    for (int i = static_cast<int>(threadIdx.x); i < (end - begin) * quads; i += kThreads) {
      const int token = i / quads, c = i % quads * 4;
      const SharedPtr<float> to = At(begin + token, c);
      const float* from = rows + token * stride;
      if (aligned) {
        CopyAsync16(SharedCast<uint4>(to), from + c, true);
      } else {
        *SharedCast<float4>(to) = Load4(from, c, n_channels, false, 0);
      }
    }
    CommitCopies();
    WaitCopies<0>();
    __syncthreads();
  }

  // With scales: finds those of the slots.
  template <class T>
  __device__ void FindScales(const SlotRow<T>& first_slot) const {
    const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
    for (int slot = begin + warp; slot < end; slot += kThreads / 32) {
      uint32_t largest = 0;
      for (int c = lane; c < n_channels; c += 32) {
        const float x = *At(slot, c);
        const uint32_t bits = MagnitudeBits(x * factor);
        largest = bits > largest ? bits : largest;
      }
      largest = WarpFold(largest, [](uint32_t a, uint32_t b) { return a > b ? a : b; });
      if (lane > 0) continue;
      const uint8_t exponent = Slots<T>::Exponent(largest);
      *Inverse(slot) = InverseExponentScale(exponent);
      first_slot.exponent[slot] = std::bit_cast<T>(exponent);
    }
    __syncthreads();
  }
  template <class T>
  __device__ T Element(float x, int slot) const {
    if constexpr (!Slots<T>::kScaled) return Slots<T>::Nearest(x * factor);
    const float inverse = *Inverse(slot);
    return NearestElement<T>(x * factor, inverse);
  }

  // to: the run's first slot.
  template <class T>
  __device__ void StoreKeys(const SlotRow<T>& to) const {
    if constexpr (Slots<T>::kScaled) FindScales(to);
    constexpr int kUnits = kRunSlots / kUnit<T>;
    for (int i = static_cast<int>(threadIdx.x); i < n_channels * kUnits; i += kThreads) {
      const int slot = i % kUnits * kUnit<T>, c = i / kUnits;
      std::array<T, kUnit<T>> unit = {};
#pragma unroll
      for (int k = 0; k < kUnit<T>; ++k) {
        if (slot + k < begin || slot + k >= end) continue;
        const float x = *At(slot + k, c);
        unit[k] = Element<T>(x, slot + k);
      }
      StoreUnit(unit, begin - slot, end - slot, to.data + c * to.stride + slot);
    }
  }
  template <class T>
  __device__ void StoreValues(const SlotRow<T>& to, int value_stride) const {
    if constexpr (Slots<T>::kScaled) FindScales(to);
    const int units = (n_channels + kUnit<T> - 1) / kUnit<T>;
    for (int i = static_cast<int>(threadIdx.x); i < (end - begin) * units; i += kThreads) {
      const int slot = begin + i / units, c = i % units * kUnit<T>;
      std::array<T, kUnit<T>> unit = {};
#pragma unroll
      for (int k = 0; k < kUnit<T> && c + k < n_channels; k += 4) {
        const float4 x = *SharedCast<const float4>(At(slot, c + k));
        unit[k] = Element<T>(x.x, slot);
        unit[k + 1] = Element<T>(x.y, slot);
        unit[k + 2] = Element<T>(x.z, slot);
        unit[k + 3] = Element<T>(x.w, slot);
      }
      StoreUnit(unit, 0, n_channels - c, to.data + slot * value_stride + c);
    }
  }
};

// The slots that one thread block stores.
struct StoreRun {
  bool is_value;
  int sequence, head;
  std::byte* session;
  int64_t first = 0;           // a multiple of kRunSlots
  int32_t begin = 0, end = 0;  // slots of tokens, counted from `first`; none if begin >= end
  int64_t row = 0;             // of the token for slot `begin`
};
__device__ inline StoreRun FindRun(const AttentionBlocks& blocks, const DeviceWave& wave,
                                   uint32_t most_runs) {
  const uint32_t place = blockIdx.x / 2 % most_runs, sequence_head = blockIdx.x / 2 / most_runs;
  const auto heads = static_cast<uint32_t>(blocks.shape.n_kv_heads);
  StoreRun run = {.is_value = blockIdx.x % 2 > 0,
                  .sequence = static_cast<int>(sequence_head / heads),
                  .head = static_cast<int>(sequence_head % heads),
                  .session = wave.seqs.state[sequence_head / heads]};
  // Keys outside the state are the mixer's to fill, unless they are in a larger ring.
  const bool stores_keys = blocks.keeps_keys() || blocks.seen_blocks > 0;
  if (run.session == nullptr || !(run.is_value || stores_keys)) return run;
  const WaveTokens tokens = TokensInWave(wave, run.sequence, blocks.wave_span);
  const int64_t begin = tokens.begin - blocks.origin(tokens.begin);
  const int64_t end = begin + (tokens.end - tokens.begin);
  run.first = (begin / kRunSlots + place) * kRunSlots;
  // The newest stay of more tokens than a ring has slots.
  const int64_t slots = int64_t{blocks.ring()} * kBlockSlots;
  const int64_t first = slots > 0 && end - begin > slots ? end - slots : begin;
  const int64_t from = first > run.first ? first : run.first;
  run.begin = static_cast<int32_t>(from - run.first);
  run.end = Smaller(end - run.first, kRunSlots);
  run.row = tokens.row + (from - begin);
  return run;
}

// Stores keys (transposed) and values of a wave's tokens to their recent slots, rounded to nearest
// even; the padding of values is not touched. Launch: 128 threads for kRunSlots slots of one
// key/value head; grid x: keys or values fastest, then runs of slots, most_runs of them, key/value
// head, sequence. Bytes: reads 4 (head_dim + value_head_dim) per token and head, writes as many
// elements of the state. Positions and
// states are read before the kernels before have ended, as in HeadsKernel.
template <class T>
__global__ void __launch_bounds__(kThreads)
    StoreRecentKernel(const __grid_constant__ AttentionArgs args,
                      const __grid_constant__ DeviceWave wave, uint32_t most_runs, bool aligned) {
  AllowNextKernel();
  const AttentionBlocks& blocks = args.blocks;
  const StoreRun run = FindRun(blocks, wave, most_runs);
  WaitForKernelsBefore();
  if (run.begin >= run.end) return;
  const int channels = run.is_value ? blocks.shape.value_head_dim : blocks.shape.head_dim;
  const float* tokens = run.is_value ? args.tokens.v : args.tokens.k;
  const RunRows rows = {tokens + run.row * args.tokens.stride + run.head * channels,
                        args.tokens.stride,
                        run.begin,
                        run.end,
                        channels,
                        run.is_value ? 1.0f : blocks.KeyScale(run.head)};
  rows.Load(aligned);
  const int64_t block = run.first / kBlockSlots;
  const int slot = static_cast<int>(run.first % kBlockSlots), value_stride = ValueStride(channels);
  if (run.is_value) {
    T* values = blocks.recent_values.At<T>(run.session, run.sequence, run.head, block);
    rows.StoreValues(ValueRow(values, value_stride, slot), value_stride);
  } else {
    T* keys = blocks.recent_keys.At<T>(run.session, run.sequence, run.head, block);
    rows.StoreKeys(KeyRow(keys, channels, slot));
  }
}

// Copies the blocks that a sequence's first token sees, and its last one, from its ring to the
// larger ring of `to`, unless the sequence's tokens fill them. Launch: 128 threads for a block of
// one key/value head; grid x: block fastest, then key/value head, sequence.
__global__ void __launch_bounds__(kThreads)
    CopyRecentKernel(const __grid_constant__ AttentionBlocks from,
                     const __grid_constant__ AttentionBlocks to,
                     const __grid_constant__ DeviceSequences seqs) {
  AllowNextKernel();
  WaitForKernelsBefore();
  const auto heads = static_cast<uint32_t>(from.shape.n_kv_heads),
             places = static_cast<uint32_t>(from.ring()) + 1;
  const auto place = static_cast<int64_t>(blockIdx.x % places);
  const int head = static_cast<int>(blockIdx.x / places % heads);
  const int sequence = static_cast<int>(blockIdx.x / places / heads);
  std::byte* session = seqs.state[sequence];
  if (session == nullptr) return;
  const int64_t begin = seqs.start_pos[sequence],
                end = begin + seqs.token_begin[sequence + 1] - seqs.token_begin[sequence];
  const int64_t first = begin / kBlockSlots, last = (end - 1) / kBlockSlots;
  const int64_t block = place < from.ring() ? first - place : last;
  const bool filled = block * kBlockSlots >= begin && (block + 1) * kBlockSlots <= end;
  if (block < 0 || filled || (place == from.ring() && last == first)) return;
  const auto copy = [&](const BlockPlaces& source, const BlockPlaces& target) {
    const auto* in = source.At<const uint4>(session, sequence, head, block);
    auto* out = target.At<uint4>(session, sequence, head, block);
    const auto n = static_cast<uint32_t>(source.place.index_stride / sizeof(uint4));
#pragma unroll 4
    for (uint32_t i = threadIdx.x; i < n; i += kThreads) out[i] = in[i];
  };
  copy(from.recent_keys, to.recent_keys);
  copy(from.recent_values, to.recent_values);
}

// A batch's row is its sequence's only token.
template <class T>
struct StoreNewest {
  static constexpr bool kHasValues = true;
  HeadRows values;
  AttentionBlocks blocks;
  DeviceSequences seqs;

  struct Place {
    std::byte* session;
    int64_t block;
    int slot;
  };
  __device__ Place Find(int64_t row) const {
    const int64_t position = seqs.positions[row], at = position - blocks.origin(position);
    return {seqs.state[row], at / kBlockSlots, static_cast<int>(at % kBlockSlots)};
  }
  template <class Head>
  __device__ void StoreKey(const Place& place, int64_t row, int kv_head, Head& key) const {
    if (place.session == nullptr || !blocks.keeps_keys()) return;
    T* to = blocks.recent_keys.At<T>(place.session, static_cast<int>(row), kv_head, place.block);
    Store(key, blocks.KeyScale(kv_head), KeyRow(to, blocks.shape.head_dim, place.slot));
  }
  template <class Head>
  __device__ void StoreValue(const Place& place, int64_t row, int kv_head, Head& value) const {
    if (place.session == nullptr) return;
    T* to = blocks.recent_values.At<T>(place.session, static_cast<int>(row), kv_head, place.block);
    Store(value, 1, ValueRow(to, ValueStride(blocks.shape.value_head_dim), place.slot));
  }

  template <class Head>
  __device__ static void Store(Head& head, float factor, const SlotRow<T>& to) {
    uint32_t largest = 0;
    if constexpr (Slots<T>::kScaled) {
      const auto larger = [](uint32_t a, uint32_t b) { return a > b ? a : b; };
      head.Each([&](int, int, float& a, float& b) {
        largest = larger(largest, larger(MagnitudeBits(a * factor), MagnitudeBits(b * factor)));
      });
      largest = WarpFold(largest, larger);
    }
    const uint8_t exponent = Slots<T>::Exponent(largest);
    const float inverse = InverseExponentScale(exponent);
    head.Each([&](int, int pair, float& a, float& b) {
      to.data[head.first(pair) * to.stride] = NearestElement<T>(a * factor, inverse);
      if (!head.has_second(pair)) return;
      to.data[head.second(pair) * to.stride] = NearestElement<T>(b * factor, inverse);
    });
    if (threadIdx.x % kWarp == 0) to.SetExponent(exponent);
  }
};

}  // namespace

void CopyRecent(DeviceContext& context, const AttentionBlocks& from, const AttentionBlocks& to,
                const BatchSequences& seqs) {
  const auto grid =
      static_cast<uint32_t>(int64_t{seqs.n_seqs()} * from.shape.n_kv_heads * (from.ring() + 1));
  LaunchEarly(context, CopyRecentKernel, grid, kThreads, 0, from, to, seqs.device);
}

void StoreRecent(DeviceContext& context, const AttentionArgs& args, int wave) {
  const AttentionBlocks& blocks = args.blocks;
  const AttentionTensors& tokens = args.tokens;
  const int d = blocks.shape.head_dim, dv = blocks.shape.value_head_dim;
  const int most_runs = args.seqs.one_token_each()
                            ? 1
                            : RecentBlocks(blocks, args.seqs, wave) * (kBlockSlots / kRunSlots);
  if (most_runs == 0) return;
  const auto is_aligned = [&](const float* rows, int channels) {
    return channels % 4 == 0 && Aligned(rows, tokens.stride, sizeof(float));
  };
  const auto grid =
      static_cast<uint32_t>(int64_t{args.seqs.n_seqs()} * blocks.shape.n_kv_heads * most_runs * 2);
  const auto kernel =
      VisitSlots(blocks.dtype, []<class T>(Slots<T>) { return StoreRecentKernel<T>; });
  LaunchEarly(context, kernel, grid, kThreads, RunRows::SharedBytes(std::max(d, dv)), args,
              DeviceWave{args.seqs.device, wave}, static_cast<uint32_t>(most_runs),
              is_aligned(tokens.k, d) && is_aligned(tokens.v, dv));
}

}  // namespace cuda

void PrepareAndStoreCuda(DeviceContext& context, const HeadPrep& prep, const HeadRows& values,
                         const AttentionBlocks& blocks, const DeviceSequences& seqs) {
  VisitSlots(blocks.dtype, [&]<class T>(Slots<T>) {
    cuda::LaunchHeads(context, prep, cuda::StoreNewest<T>{values, blocks, seqs});
  });
}

}  // namespace ovq::kernels
