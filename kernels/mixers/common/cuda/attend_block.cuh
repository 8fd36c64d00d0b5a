// Copies of blocks of slots to shared memory for the tensor cores, which read bfloat16.
//
// A bfloat16 block is copied to where it is read. A block of another type, one byte with a scale,
// is copied beside that, with its exponents, and widened by the thread that copied it, so that this
// needs no barrier of its own: the barrier after which others read covers it. Values are widened
// times their scale, which is exact; keys are not, as their scale is applied to their scores, of
// which there are fewer.
#pragma once

#include <cstdint>

#include "kernels/mixers/common/cuda/attend_tile.cuh"
#include "kernels/mixers/common/slots.h"

namespace ovq::kernels::cuda {

inline constexpr int kBlockThreads = 128;  // of the decode and the prefill kernel

template <class T>
inline constexpr bool kWidened = !std::is_same_v<T, BF16>;

// Channels of a slot's key, and of its value with padding: those that shared memory has room for,
// a kernel's constants, and those that heads have.
struct BlockDims {
  int keys, values;
  int head_dim = 0, value_stride = 0;
};

// Eight rows of a matrix must fall into different banks: rows in shared memory are an odd number of
// 16-byte chunks apart; those of the keys, which have eight chunks, are stored in a permuted order.
inline constexpr int kKeyChunks = kBlockSlots / 8;
__host__ __device__ constexpr int KeyChunk(int row, int chunk) { return chunk ^ row % kKeyChunks; }
inline constexpr int kBiasChunks = kBlockSlots / 4;
__host__ __device__ constexpr int RowChunks(int channels) { return channels / 8 + 1; }
// 16-byte chunks of a one-byte key channel, or of the exponents of all slots.
inline constexpr int kByteChunks = kBlockSlots / 16;

// Chunks of keys [dims.keys][kKeyChunks] and values [64][RowChunks(dims.values)] in bfloat16.
__host__ __device__ constexpr int ReadChunks(const BlockDims& dims) {
  return dims.keys * kKeyChunks + kBlockSlots * RowChunks(dims.values);
}
// Chunks copied beside that for types that are widened: bias, exponents of keys and of values,
// keys, values.
__host__ __device__ constexpr int CopiedChunks(const BlockDims& dims) {
  return kBiasChunks + (2 + dims.keys + dims.values) * kByteChunks;
}

// Chunks of n_stages blocks that are loading or in use. T: type of keys and values.
template <class T>
__host__ __device__ constexpr int BlockChunks(const BlockDims& dims, int n_stages) {
  const int read = ReadChunks(dims);
  if constexpr (kWidened<T>) {
    return read + n_stages * CopiedChunks(dims);
  } else {
    return n_stages * (read + kBiasChunks);
  }
}

template <class T>
struct BlockBuffer {
  static_assert(!kWidened<T> || (Slots<T>::kScaled && sizeof(T) == 1));
  SharedPtr<uint4> keys, values, bias;
  // Types that are widened have these: [kByteChunks] each, [head_dim][kByteChunks],
  // [64][value_stride / 16].
  SharedPtr<uint4> key_exponents = {}, value_exponents = {}, copied_keys = {}, copied_values = {};
};

// The buffer of a block in that stage. chunk: first of BlockChunks<T> chunks.
template <class T>
__device__ inline BlockBuffer<T> BufferAt(const BlockDims& dims, uint32_t chunk, int stage) {
  const int read = ReadChunks(dims);
  const SharedPtr<uint4> first = DynamicShared<uint4>(chunk * sizeof(uint4));
  if constexpr (kWidened<T>) {
    const SharedPtr<uint4> copied = first + (read + stage * CopiedChunks(dims));
    const SharedPtr<uint4> keys = copied + (kBiasChunks + 2 * kByteChunks);
    return {.keys = first,
            .values = first + dims.keys * kKeyChunks,
            .bias = copied,
            .key_exponents = copied + kBiasChunks,
            .value_exponents = copied + (kBiasChunks + kByteChunks),
            .copied_keys = keys,
            .copied_values = keys + dims.keys * kByteChunks};
  } else {
    const SharedPtr<uint4> keys = first + stage * (read + kBiasChunks);
    const SharedPtr<uint4> bias = keys + dims.keys * kKeyChunks;
    return {.keys = keys, .values = bias + kBiasChunks, .bias = bias};
  }
}

// Calls fn(row, chunk) for this thread's share of a block's 64 rows of that many chunks.
template <class Fn>
__device__ inline void ForMyChunks(int chunks, Fn&& fn) {
  const int row_step = kBlockThreads / chunks, column_step = kBlockThreads % chunks;
  int row = static_cast<int>(threadIdx.x) / chunks, column = static_cast<int>(threadIdx.x) % chunks;
  if (column_step == 0 && kBlockSlots % row_step == 0) {  // the number of rows is known
#pragma unroll
    for (int i = 0; i < kBlockSlots / row_step; ++i) fn(row + i * row_step, column);
    return;
  }
#pragma unroll 1
  while (row < kBlockSlots) {
    fn(row, column);
    row += row_step;
    column += column_step;
    if (column >= chunks) {
      column -= chunks;
      ++row;
    }
  }
}

// Starts the copy of a block's bias; a block without one gets zeros.
__device__ inline void CopyBias(const AttendArgs& args, const BlockView& block,
                                SharedPtr<uint4> to) {
  static_assert(kBiasChunks <= kBlockThreads);
  const int i = static_cast<int>(threadIdx.x);
  const bool biased = block.bias != nullptr;
  if (i < kBiasChunks) CopyAsync16(to + i, biased ? block.bias + i * 4 : args.tokens.q, biased);
}

// Starts the copy of the inputs of scores: keys and bias, and the exponents of keys and values.
template <class T>
__device__ inline void CopyKeys(const AttendArgs& args, const BlockDims& dims,
                                const BlockView& block, const BlockBuffer<T>& buffer) {
  constexpr int kChunks = kWidened<T> ? kByteChunks : kKeyChunks;
  const int n = dims.head_dim * kChunks, first = static_cast<int>(threadIdx.x);
  // The place in its row of a thread's chunk is the same for all its rows, 16 apart.
  const int row = first / kChunks;
  const SharedPtr<uint4> to =
      kWidened<T> ? buffer.copied_keys + first
                  : buffer.keys + (row * kKeyChunks + KeyChunk(row, first % kChunks));
  const std::byte* from = block.keys + first * 16;
#pragma unroll 4
  for (int i = 0; i < n - first; i += kBlockThreads) CopyAsync16(to + i, from + i * 16, true);
  if (kWidened<T> && first < 2 * kByteChunks) {
    const bool of_keys = first < kByteChunks;
    const int chunk = first % kByteChunks;
    CopyAsync16((of_keys ? buffer.key_exponents : buffer.value_exponents) + chunk,
                of_keys ? block.keys + (n + chunk) * 16
                        : block.values + kBlockSlots * dims.value_stride + chunk * 16,
                true);
  }
  CopyBias(args, block, buffer.bias);
}

template <class T>
__device__ inline void CopyValues(const BlockDims& dims, const BlockView& block,
                                  const BlockBuffer<T>& buffer) {
  const int chunks = dims.value_stride * static_cast<int>(sizeof(T)) / 16;
  ForMyChunks(chunks, [&](int row, int column) {
    CopyAsync16(kWidened<T> ? buffer.copied_values + (row * chunks + column)
                            : buffer.values + (row * RowChunks(dims.values) + column),
                block.values + (row * chunks + column) * 16, true);
  });
}

// Widens a chunk of 16 elements times scale to the chunks at low and high.
template <class T>
__device__ inline void WidenChunk(const uint4& from, float scale, SharedPtr<uint4> low,
                                  SharedPtr<uint4> high) {
  const auto widen = [&](uint32_t word) {
    const auto x = Slots<T>::Widen(word);
    return uint2{PackBF16(x[0] * scale, x[1] * scale), PackBF16(x[2] * scale, x[3] * scale)};
  };
  uint2 a = widen(from.x), b = widen(from.y);
  *low = uint4{a.x, a.y, b.x, b.y};
  a = widen(from.z);
  b = widen(from.w);
  *high = uint4{a.x, a.y, b.x, b.y};
}

// Widens the keys that this thread has copied, after they arrived. No thread reads the previous
// block any more.
template <class T>
__device__ inline void WidenKeys(const BlockDims& dims, const BlockBuffer<T>& buffer) {
  if constexpr (kWidened<T>) {
#pragma unroll 2
    for (int i = static_cast<int>(threadIdx.x); i < dims.head_dim * kByteChunks;
         i += kBlockThreads) {
      const uint4 copied = buffer.copied_keys[i];
      const int row = i / kByteChunks, chunk = i % kByteChunks * 2;
      const SharedPtr<uint4> to = buffer.keys + row * kKeyChunks;
      WidenChunk<T>(copied, 1, to + KeyChunk(row, chunk), to + KeyChunk(row, chunk + 1));
    }
  }
}
// Widens the values. Called after a barrier that follows the arrival of the keys, with which the
// exponents come.
template <class T>
__device__ inline void WidenValues(const BlockDims& dims, const BlockBuffer<T>& buffer) {
  if constexpr (kWidened<T>) {
    const int chunks = dims.value_stride / 16;
    const SharedPtr<const uint8_t> exponents = SharedCast<const uint8_t>(buffer.value_exponents);
    ForMyChunks(chunks, [&](int row, int column) {
      const uint4 copied = buffer.copied_values[row * chunks + column];
      const uint8_t exponent = exponents[row];
      const SharedPtr<uint4> to = buffer.values + (row * RowChunks(dims.values) + 2 * column);
      WidenChunk<T>(copied, ExponentScale(exponent), to, to + 1);
    });
  }
}

// Applies the key scales to the scores of the slots from `slot` on: a lane has an n tile's columns
// (attend_mma.cuh).
template <class T, int kTiles>
__device__ inline void ScaleScores(const BlockBuffer<T>& buffer, int slot,
                                   float (&scores)[kTiles][4]) {
  if constexpr (Slots<T>::kScaled) {
    const int column = slot + static_cast<int>(threadIdx.x) % 4 * 2;
    const SharedPtr<const uint16_t> pairs = SharedCast<const uint16_t>(buffer.key_exponents);
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
      const uint16_t two = pairs[(column + 8 * n) / 2];
      const float scale[2] = {ExponentScale(static_cast<uint8_t>(two & 0xff)),
                              ExponentScale(static_cast<uint8_t>(two >> 8))};
#pragma unroll
      for (int e = 0; e < 4; ++e) scores[n][e] *= scale[e % 2];
    }
  }
}

}  // namespace ovq::kernels::cuda
