#include <algorithm>

#include "kernels/common/cuda/cuda_device.h"
#include "kernels/mixers/common/cuda/attend_launch.h"
#include "kernels/mixers/common/cuda/attend_tile.cuh"
#include "kernels/mixers/common/slots.h"

namespace ovq::kernels::cuda {
namespace {

constexpr int kThreads = 128;
constexpr int kChannels = 8;  // channels in a thread's share of a key: 32 bytes, a memory sector

// Tokens of one head that go to slots [slot, slot + n) of one block.
struct StoreTile {
  const float* keys;  // keys of the first token; tokens are `stride` floats apart
  const float* values;
  int64_t stride;
  int32_t slot, n;
  float key_scale;
};

// Stores rows, times `factor`, to the slots from `first_slot` on, whose elements are slot_stride
// apart. Lanes of a warp share a row and first find its largest channel: all 32 lanes where there
// are few rows, else four, so that adjacent lanes write adjacent slots of a key.
template <class T>
__device__ inline void StoreScaled(const float* rows, int64_t row_stride, int n_rows,
                                   int n_channels, float factor, const SlotRow<T>& first_slot,
                                   int slot_stride) {
  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32;
  const int warp_rows = n_rows < kThreads / 32 ? 1 : 8;
  const int first = lane / warp_rows * kChannels, step = 32 / warp_rows * kChannels;
  for (int begin = thread / 32 * warp_rows; begin < n_rows; begin += kThreads / 32 * warp_rows) {
    const int i = begin + lane % warp_rows;
    const float* row = rows + i * row_stride;
    const int end = i < n_rows ? n_channels : 0;
    uint32_t largest = 0;
    for (int c = first; c < end; c += step) {
      const uint32_t bits =
          MagnitudeBits(row + c, end - c < kChannels ? end - c : kChannels, factor);
      largest = bits > largest ? bits : largest;
    }
    for (int apart = warp_rows; apart < 32; apart *= 2) {
      const uint32_t other = __shfl_xor_sync(kWholeWarp, largest, apart);
      largest = other > largest ? other : largest;
    }
    const uint8_t exponent = Slots<T>::Exponent(largest);
    const float inverse = InverseExponentScale(exponent);
    const SlotRow<T> to = {first_slot.data + i * slot_stride, first_slot.stride,
                           first_slot.exponent + i};
    for (int group = first; group < end; group += step) {
      for (int c = group; c < group + kChannels && c < end; ++c) {
        to.data[c * to.stride] = NearestElement<T>(row[c] * factor, inverse);
      }
    }
    if (first == 0 && i < n_rows) to.SetExponent(exponent);
  }
}

template <class T>
__device__ inline void StoreKeys(const StoreTile& tile, int head_dim, T* to) {
  if constexpr (Slots<T>::kScaled) {
    StoreScaled(tile.keys, tile.stride, tile.n, head_dim, tile.key_scale,
                KeyRow(to, head_dim, tile.slot), 1);
  } else {
    const int shares = (head_dim + kChannels - 1) / kChannels;
    for (int i = static_cast<int>(threadIdx.x); i < tile.n * shares; i += kThreads) {
      const int token = i % tile.n, first = i / tile.n * kChannels;
      const float* key = tile.keys + token * tile.stride;
      const int end = first + kChannels < head_dim ? first + kChannels : head_dim;
      const SlotRow<T> row = KeyRow(to, head_dim, tile.slot + token);
      for (int c = first; c < end; ++c) {
        row.data[c * kBlockSlots] = Slots<T>::Nearest(key[c] * tile.key_scale);
      }
    }
  }
}

template <class T>
__device__ inline void StoreValues(const StoreTile& tile, int value_head_dim, T* to) {
  const int value_stride = ValueStride(value_head_dim);
  if constexpr (Slots<T>::kScaled) {
    StoreScaled(tile.values, tile.stride, tile.n, value_head_dim, 1,
                ValueRow(to, value_stride, tile.slot), value_stride);
  } else {
    for (int i = static_cast<int>(threadIdx.x); i < tile.n * value_head_dim; i += kThreads) {
      const int token = i / value_head_dim, c = i % value_head_dim;
      to[(tile.slot + token) * value_stride + c] =
          Slots<T>::Nearest(tile.values[token * tile.stride + c]);
    }
  }
}

// Stores keys (transposed) and values of a wave's tokens to their recent slots, rounded to nearest
// even; the padding of values is not touched. recent_blocks: those that a sequence's tokens may lie
// in. Launch: 128 threads per stretch of tokens of one
// key/value head that lie in one block; grid x: block fastest, then key/value head, sequence. For
// keys, adjacent threads have adjacent tokens: each reads a sector and they write adjacent slots.
// For values they have adjacent channels. Bytes: reads 4 (head_dim + value_head_dim) per token and
// head, writes as many elements of the state.
template <class T>
__global__ void __launch_bounds__(kThreads)
    StoreRecentKernel(const __grid_constant__ AttentionArgs args,
                      const __grid_constant__ DeviceWave wave, int32_t recent_blocks) {
  const AttentionBlocks& blocks = args.blocks;
  const auto heads = static_cast<uint32_t>(blocks.shape.n_kv_heads);
  const uint32_t place = blockIdx.x % static_cast<uint32_t>(recent_blocks);
  const uint32_t sequence_head = blockIdx.x / static_cast<uint32_t>(recent_blocks);
  const int head = static_cast<int>(sequence_head % heads);
  const int sequence = static_cast<int>(sequence_head / heads);
  std::byte* session = wave.seqs.state[sequence];
  if (session == nullptr) return;
  const WaveTokens tokens = TokensInWave(wave, sequence, blocks.wave_span);
  const int64_t begin = tokens.begin - blocks.origin(tokens.begin);
  const int64_t end = begin + (tokens.end - tokens.begin);
  const int64_t block = begin / kBlockSlots + place;
  const int64_t from = place == 0 ? begin : block * kBlockSlots;
  const int64_t to = end < (block + 1) * kBlockSlots ? end : (block + 1) * kBlockSlots;
  if (from >= to) return;
  const int64_t row = (tokens.row + (from - begin)) * args.tokens.stride;
  const StoreTile tile = {args.tokens.k + row + head * blocks.shape.head_dim,
                          args.tokens.v + row + head * blocks.shape.value_head_dim,
                          args.tokens.stride,
                          static_cast<int32_t>(from % kBlockSlots),
                          static_cast<int32_t>(to - from),
                          blocks.KeyScale(head)};
  if (blocks.recent_keys.shared == nullptr) {
    StoreKeys(tile, blocks.shape.head_dim,
              blocks.recent_keys.At<T>(session, sequence, head, block));
  }
  StoreValues(tile, blocks.shape.value_head_dim,
              blocks.recent_values.At<T>(session, sequence, head, block));
}

}  // namespace

void StoreRecent(DeviceContext& context, const AttentionArgs& args, int wave) {
  const AttentionBlocks& blocks = args.blocks;
  const int recent_blocks = RecentBlocks(blocks, args.seqs, wave);
  if (recent_blocks == 0) return;
  const auto grid =
      static_cast<uint32_t>(int64_t{args.seqs.n_seqs()} * blocks.shape.n_kv_heads * recent_blocks);
  const auto kernel =
      VisitSlots(blocks.dtype, []<class T>(Slots<T>) { return StoreRecentKernel<T>; });
  Launch(context, kernel, grid, kThreads, 0, args, DeviceWave{args.seqs.device, wave},
         recent_blocks);
}

}  // namespace ovq::kernels::cuda
