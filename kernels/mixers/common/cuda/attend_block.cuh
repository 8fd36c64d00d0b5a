// Copies of blocks of slots to shared memory for the tensor cores, which read bfloat16.
//
// A bfloat16 block is copied to where it is read. An int8 block is copied beside that, with its
// exponents, and widened by the thread that copied it, so that this needs no barrier of its own:
// the barrier after which others read covers it. Values are widened times their scale, which is
// exact; keys are not, as their scale is applied to their scores, of which there are fewer.
#pragma once

#include <cstdint>

#include "kernels/mixers/common/cuda/attend_tile.cuh"
#include "kernels/mixers/common/int8_rows.h"

namespace ovq::cuda {

// Eight rows of a matrix must fall into different banks: rows in shared memory are an odd number of
// 16-byte chunks apart; those of the keys, which have eight chunks, are stored in a permuted order.
inline constexpr int kKeyChunks = kBlockSlots / 8;
__host__ __device__ constexpr int KeyChunk(int row, int chunk) { return chunk ^ row % kKeyChunks; }
inline constexpr int kBiasChunks = kBlockSlots / 4;
__host__ __device__ constexpr int RowChunks(int channels) { return channels / 8 + 1; }
// 16-byte chunks of an int8 key channel, or of the exponents of all slots.
inline constexpr int kInt8Chunks = kBlockSlots / 16;

// Chunks of keys [head_dim][kKeyChunks] and values [64][RowChunks(value_stride)] in bfloat16.
__host__ __device__ constexpr int ReadChunks(int head_dim, int value_stride) {
  return head_dim * kKeyChunks + kBlockSlots * RowChunks(value_stride);
}
// Chunks copied beside that for int8: bias and the exponents of the keys, keys, values.
__host__ __device__ constexpr int CopiedChunks(int head_dim, int value_stride) {
  return kBiasChunks + kInt8Chunks + (head_dim + value_stride) * kInt8Chunks;
}

// Chunks of n_stages blocks that are loading or in use. T: type of keys and values.
template <class T>
__host__ __device__ constexpr int BlockChunks(int head_dim, int value_stride, int n_stages) {
  const int read = ReadChunks(head_dim, value_stride);
  if constexpr (kHasExponents<T>) {
    // Exponents of values arrive with the keys and stay until the values are widened, so there are
    // two alternating copies.
    return read + 2 * kInt8Chunks + n_stages * CopiedChunks(head_dim, value_stride);
  } else {
    return n_stages * (read + kBiasChunks);
  }
}

template <class T>
struct BlockBuffer {
  SharedPtr<uint4> keys, values, bias;
};
template <>
struct BlockBuffer<Int8> {
  SharedPtr<uint4> keys, values, bias;
  SharedPtr<uint4> key_exponents, value_exponents;  // [kInt8Chunks]
  SharedPtr<uint4> copied_keys;                     // [head_dim][kInt8Chunks]
  SharedPtr<uint4> copied_values;                   // [64][value_stride / 16]
};

// The buffer of the tile's i-th block. chunk: first of BlockChunks<T>(.., kStages) chunks.
template <class T, int kStages>
__device__ inline BlockBuffer<T> BufferAt(const AttendArgs& args, uint32_t chunk, int i) {
  const int head_dim = args.blocks.shape.head_dim;
  const int read = ReadChunks(head_dim, args.value_stride);
  const SharedPtr<uint4> first = DynamicShared<uint4>(chunk * sizeof(uint4));
  if constexpr (kHasExponents<T>) {
    const SharedPtr<uint4> exponents = first + read;
    const SharedPtr<uint4> copied =
        exponents + (2 * kInt8Chunks + i % kStages * CopiedChunks(head_dim, args.value_stride));
    const SharedPtr<uint4> keys = copied + (kBiasChunks + kInt8Chunks);
    return {.keys = first,
            .values = first + head_dim * kKeyChunks,
            .bias = copied,
            .key_exponents = copied + kBiasChunks,
            .value_exponents = exponents + i % 2 * kInt8Chunks,
            .copied_keys = keys,
            .copied_values = keys + head_dim * kInt8Chunks};
  } else {
    const SharedPtr<uint4> keys = first + i % kStages * (read + kBiasChunks);
    const SharedPtr<uint4> bias = keys + head_dim * kKeyChunks;
    return {.keys = keys, .values = bias + kBiasChunks, .bias = bias};
  }
}

// Calls fn(row, chunk) for this thread's share of rows of that many chunks.
template <class Fn>
__device__ inline void ForMyChunks(int chunks, Fn&& fn) {
  const int threads = static_cast<int>(blockDim.x);
  const int row_step = threads / chunks, column_step = threads % chunks;
  int row = static_cast<int>(threadIdx.x) / chunks, column = static_cast<int>(threadIdx.x) % chunks;
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
  for (int i = static_cast<int>(threadIdx.x); i < kBiasChunks; i += static_cast<int>(blockDim.x)) {
    const bool biased = block.bias != nullptr;
    CopyAsync16(to + i, biased ? block.bias + i * 4 : args.tokens.q, biased);
  }
}

// Starts the copy of the inputs of scores: keys and bias.
__device__ inline void CopyKeys(const AttendArgs& args, const BlockView& block,
                                const BlockBuffer<BF16>& buffer) {
  const int n = args.blocks.shape.head_dim * kKeyChunks;
  for (int i = static_cast<int>(threadIdx.x); i < n; i += static_cast<int>(blockDim.x)) {
    const int row = i / kKeyChunks;
    CopyAsync16(buffer.keys + (row * kKeyChunks + KeyChunk(row, i % kKeyChunks)),
                block.keys + i * 16, true);
  }
  CopyBias(args, block, buffer.bias);
}
__device__ inline void CopyKeys(const AttendArgs& args, const BlockView& block,
                                const BlockBuffer<Int8>& buffer) {
  const int n = args.blocks.shape.head_dim * kInt8Chunks;
  for (int i = static_cast<int>(threadIdx.x); i < n; i += static_cast<int>(blockDim.x)) {
    CopyAsync16(buffer.copied_keys + i, block.keys + i * 16, true);
  }
  for (int i = static_cast<int>(threadIdx.x); i < 2 * kInt8Chunks;
       i += static_cast<int>(blockDim.x)) {
    const bool of_keys = i < kInt8Chunks;
    const int chunk = i % kInt8Chunks;
    CopyAsync16((of_keys ? buffer.key_exponents : buffer.value_exponents) + chunk,
                of_keys ? block.keys + (n + chunk) * 16
                        : block.values + kBlockSlots * args.value_stride + chunk * 16,
                true);
  }
  CopyBias(args, block, buffer.bias);
}

__device__ inline void CopyValues(const AttendArgs& args, const BlockView& block,
                                  const BlockBuffer<BF16>& buffer) {
  const int chunks = args.value_stride / 8;
  ForMyChunks(chunks, [&](int row, int column) {
    CopyAsync16(buffer.values + (row * RowChunks(args.value_stride) + column),
                block.values + (row * chunks + column) * 16, true);
  });
}
__device__ inline void CopyValues(const AttendArgs& args, const BlockView& block,
                                  const BlockBuffer<Int8>& buffer) {
  const int chunks = args.value_stride / 16;
  ForMyChunks(chunks, [&](int row, int column) {
    CopyAsync16(buffer.copied_values + (row * chunks + column),
                block.values + (row * chunks + column) * 16, true);
  });
}

// The integer of a byte biased by 128: as the low mantissa bits of 2^23 it is that many units above
// 2^23.
__device__ inline float FromBiasedByte(uint32_t byte) {
  constexpr float kZero = 8388608.0f + 128.0f;
  return __uint_as_float(0x4b000000u | byte) - kZero;
}
// Four int8 values times scale, as bfloat16.
__device__ inline uint2 Widened(uint32_t word, float scale) {
  const uint32_t biased = word ^ 0x80808080u;
  float x[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) x[i] = FromBiasedByte(biased >> (8 * i) & 0xff) * scale;
  return {PackBF16(x[0], x[1]), PackBF16(x[2], x[3])};
}
// Widens a chunk of 16 values to the chunks at low and high.
__device__ inline void WidenChunk(const uint4& from, float scale, SharedPtr<uint4> low,
                                  SharedPtr<uint4> high) {
  uint2 a = Widened(from.x, scale), b = Widened(from.y, scale);
  *low = uint4{a.x, a.y, b.x, b.y};
  a = Widened(from.z, scale);
  b = Widened(from.w, scale);
  *high = uint4{a.x, a.y, b.x, b.y};
}

// Widens the keys that this thread has copied, after they arrived. No thread reads the previous
// block any more.
__device__ inline void WidenKeys(const AttendArgs&, const BlockBuffer<BF16>&) {}
__device__ inline void WidenKeys(const AttendArgs& args, const BlockBuffer<Int8>& buffer) {
  const int n = args.blocks.shape.head_dim * kInt8Chunks;
  for (int i = static_cast<int>(threadIdx.x); i < n; i += static_cast<int>(blockDim.x)) {
    const uint4 copied = buffer.copied_keys[i];
    const int row = i / kInt8Chunks, chunk = i % kInt8Chunks * 2;
    const SharedPtr<uint4> to = buffer.keys + row * kKeyChunks;
    WidenChunk(copied, 1, to + KeyChunk(row, chunk), to + KeyChunk(row, chunk + 1));
  }
}
// Widens the values. Called after a barrier that follows the keys' barrier, since the keys' copies
// hold the exponents.
__device__ inline void WidenValues(const AttendArgs&, const BlockBuffer<BF16>&) {}
__device__ inline void WidenValues(const AttendArgs& args, const BlockBuffer<Int8>& buffer) {
  const int chunks = args.value_stride / 16;
  const SharedPtr<const uint8_t> exponents = SharedCast<const uint8_t>(buffer.value_exponents);
  ForMyChunks(chunks, [&](int row, int column) {
    const uint4 copied = buffer.copied_values[row * chunks + column];
    const uint8_t exponent = exponents[row];
    const SharedPtr<uint4> to = buffer.values + (row * RowChunks(args.value_stride) + 2 * column);
    WidenChunk(copied, ExponentScale(exponent), to, to + 1);
  });
}

// Applies the key scales to the scores of the slots from `slot` on: a lane has an n tile's columns
// (attend_mma.cuh).
template <int kTiles>
__device__ inline void ScaleScores(const BlockBuffer<BF16>&, int, float (&)[kTiles][4]) {}
template <int kTiles>
__device__ inline void ScaleScores(const BlockBuffer<Int8>& buffer, int slot,
                                   float (&scores)[kTiles][4]) {
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

}  // namespace ovq::cuda
