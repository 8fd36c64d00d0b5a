// Shared by the attention kernels: the rows that a thread block works on, the blocks of slots that
// these rows read, and the merge of the parts of a row's softmax.
//
// A tile holds rows of one key/value head of one sequence whose tokens lie in one recent block, so
// that all of them meet the same blocks. Its rows are a stretch of this list: the queries of the
// tokens, token after token, and then, if there are probes, the tokens' keys.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/common/cuda/ptx.cuh"
#include "kernels/mixers/common/block_attention.h"
#include "kernels/mixers/common/cuda/attend.h"

namespace ovq::kernels::cuda {

inline constexpr uint32_t kWholeWarp = 0xffffffffu;
// Below any score of finite inputs, and finite: the initial running maximum.
inline constexpr float kLowestScore = -3.0e38f;
// The header of a part of a row's softmax: maximum, sum, two unused; the accumulator follows. For a
// probe: score, slot.
inline constexpr int kPartialHeader = 4;

// The arguments of one launch.
struct AttendArgs {
  AttentionBlocks blocks;
  DeviceWave wave = {};
  AttentionTensors tokens = {};
  int32_t value_stride = 0;
  // Sequences with fewer or more tokens in this wave belong to another launch.
  int32_t min_tokens = 0, max_tokens = 0;
  int32_t block_tiles = 0;  // tiles that the tokens of one recent block may fill
  int32_t tiles = 0;        // that a sequence may fill for one key/value head
  int32_t segments = 0;     // thread blocks per tile, one per segment; 0: one for all segments
  int32_t partial_rows = 0;
  // Parts of softmax rows: [n_seqs][n_kv_heads][tiles][segments][partial_rows][header,
  // value_stride].
  float* partial = nullptr;
  // [n_seqs][n_kv_heads][tiles] thread blocks that have written their part; zero between launches.
  uint32_t* finished = nullptr;

  __host__ __device__ int rows_per_token() const {
    return blocks.shape.group() + (blocks.probe ? 1 : 0);
  }
};

// The work of one thread block. Grid x: segment fastest, then tile, key/value head, sequence.
struct Tile {
  std::byte* state;
  int32_t sequence, head;
  int32_t index;         // of (sequence, head, tile)
  int32_t row;           // of the first token
  int32_t slot;          // of the first token, in the recent block
  int64_t element;       // index of the first token in its span
  int32_t n_tokens;      // in this recent block
  int32_t first;         // index of the tile's first row in the list
  int32_t n_rows;        // of the tile
  int32_t n_queries;     // queries, which come first
  int32_t live;          // dictionary slots
  int32_t n_dictionary;  // dictionary blocks read; recent ones up to own_block follow
  int32_t n_blocks;
  int64_t own_block;
  int32_t n_segments;
  int32_t begin_block, end_block;  // this thread block's range of [0, n_blocks)

  __device__ int token(const AttendArgs& args, int r) const {
    const int at = first + r, queries = n_tokens * args.blocks.shape.group();
    return at < queries ? at / args.blocks.shape.group() : at - queries;
  }
};

__device__ inline int32_t Smaller(int64_t a, int64_t b) {
  return static_cast<int32_t>(a < b ? a : b);
}

// Finds the blocks that the tile's rows read, and this thread block's share of them.
__device__ inline void FindBlocks(const AttendArgs& args, int segment, Tile& tile) {
  tile.n_dictionary = static_cast<int32_t>(NumBlocks(tile.live));
  tile.n_blocks = tile.n_dictionary;
  if (tile.n_queries > 0) {
    const int32_t ring = args.blocks.ring();
    tile.n_blocks +=
        ring > 0 ? Smaller(ring, tile.own_block + 1) : static_cast<int32_t>(tile.own_block + 1);
  }
  tile.n_segments = (tile.n_blocks + kCudaSegmentBlocks - 1) / kCudaSegmentBlocks;
  if (tile.n_segments == 0) tile.n_segments = 1;
  tile.begin_block = args.segments == 0 ? 0 : segment * kCudaSegmentBlocks;
  tile.end_block = args.segments == 0
                       ? tile.n_blocks
                       : Smaller(tile.n_blocks, tile.begin_block + kCudaSegmentBlocks);
}

// False: this thread block has nothing to do.
__device__ inline bool FindTile(const AttendArgs& args, int rows_per_tile, Tile& tile) {
  const AttentionBlocks& blocks = args.blocks;
  const uint32_t segments = args.segments == 0 ? 1 : args.segments;
  const uint32_t segment = blockIdx.x % segments;
  const uint32_t index = blockIdx.x / segments;
  const uint32_t place = index % static_cast<uint32_t>(args.tiles);
  const uint32_t sequence_head = index / static_cast<uint32_t>(args.tiles);
  const auto heads = static_cast<uint32_t>(blocks.shape.n_kv_heads);
  tile.index = static_cast<int32_t>(index);
  tile.head = static_cast<int32_t>(sequence_head % heads);
  tile.sequence = static_cast<int32_t>(sequence_head / heads);
  tile.state = args.wave.seqs.state[tile.sequence];
  if (tile.state == nullptr) return false;

  const WaveTokens tokens = TokensInWave(args.wave, tile.sequence, blocks.wave_span);
  const int64_t length = tokens.end - tokens.begin;
  if (length < args.min_tokens || length > args.max_tokens) return false;
  const int64_t begin = tokens.begin - blocks.origin(tokens.begin);
  tile.own_block = begin / kBlockSlots + place / static_cast<uint32_t>(args.block_tiles);
  const int64_t block_begin = tile.own_block * kBlockSlots;
  const int64_t from = begin > block_begin ? begin : block_begin;
  const int64_t to = Smaller(begin + length - block_begin, kBlockSlots) + block_begin;
  if (from >= to) return false;
  tile.n_tokens = static_cast<int32_t>(to - from);
  tile.slot = static_cast<int32_t>(from - block_begin);
  tile.row = tokens.row + static_cast<int32_t>(from - begin);
  tile.element = tokens.begin - tokens.span_begin + (from - begin);

  tile.first =
      static_cast<int32_t>(place % static_cast<uint32_t>(args.block_tiles)) * rows_per_tile;
  const int32_t queries = tile.n_tokens * blocks.shape.group();
  const int32_t list = tile.n_tokens * args.rows_per_token();
  if (tile.first >= list) return false;
  tile.n_rows = Smaller(rows_per_tile, list - tile.first);
  tile.n_queries = tile.first < queries ? Smaller(tile.n_rows, queries - tile.first) : 0;
  tile.live = blocks.LiveAt(tile.sequence, tile.head, args.wave.index);
  FindBlocks(args, static_cast<int>(segment), tile);
  return segment < static_cast<uint32_t>(tile.n_segments);
}

// A block of 64 slots, like KvBlock of block_attention.h; `begin` counts from the tile's own block.
struct BlockView {
  const std::byte* keys;    // [head_dim][64]
  const std::byte* values;  // [64][value_stride]
  const float* bias;        // [64] or null
  int32_t live;             // live slots of a dictionary block; else -1
  int32_t begin;
};

template <class T = std::byte>
__device__ inline T* BlockPointer(const BlockPlaces& places, const Tile& tile, int64_t block) {
  return places.At<T>(tile.state, tile.sequence, tile.head, block);
}

// The i-th block that the tile's rows read.
__device__ inline BlockView BlockAt(const AttendArgs& args, const Tile& tile, int i) {
  const AttentionBlocks& blocks = args.blocks;
  if (i < tile.n_dictionary) {
    return {
        BlockPointer(blocks.dictionary_keys, tile, i),
        BlockPointer(blocks.dictionary_values, tile, i),
        blocks.has_bias() ? BlockPointer<const float>(blocks.dictionary_bias, tile, i) : nullptr,
        Smaller(kBlockSlots, tile.live - i * kBlockSlots), 0};
  }
  const int64_t block = tile.own_block - (tile.n_blocks - 1 - i);
  return {BlockPointer(blocks.recent_keys, tile, block),
          BlockPointer(blocks.recent_values, tile, block), nullptr, -1,
          (i - (tile.n_blocks - 1)) * kBlockSlots};
}

// Slots [lo, hi) of the block are open to a query whose token has `slot` in the tile's own block.
__device__ inline void OpenSlots(const BlockView& block, int32_t window, int slot, int& lo,
                                 int& hi) {
  lo = 0;
  hi = block.live;
  if (block.live >= 0) return;
  const int32_t at = slot - block.begin;
  hi = at + 1 < kBlockSlots ? at + 1 : kBlockSlots;
  if (window > 0 && at - window + 1 > 0) lo = at - window + 1;
}

// The better of two candidates for the nearest slot; ties to the lower slot. A NaN score never
// becomes a candidate.
struct Best {
  float score;
  int32_t slot;
};
__device__ inline Best NoBest() { return {-__int_as_float(0x7f800000), 0}; }
__device__ inline Best BetterSlot(Best a, Best b) {
  return b.score > a.score || (b.score == a.score && b.slot < a.slot) ? b : a;
}
__device__ inline Best BetterSlotOfLanes(Best best, int lane_mask) {
  return BetterSlot(best, {__shfl_xor_sync(kWholeWarp, best.score, lane_mask),
                           __shfl_xor_sync(kWholeWarp, best.slot, lane_mask)});
}

// Stores the best slot of row r of the tile, a probe.
__device__ inline void WriteBest(const AttendArgs& args, const Tile& tile, int r, Best best) {
  const int64_t element = tile.element + tile.token(args, r);
  *args.blocks.best_score.At<float>(tile.state, tile.head, element) = best.score;
  *args.blocks.best_slot.At<int32_t>(tile.state, tile.head, element) = best.slot;
}

// The query or key [head_dim] of row r of the tile.
__device__ inline const float* RowData(const AttendArgs& args, const Tile& tile, int r) {
  const AttentionShape& shape = args.blocks.shape;
  const int64_t row = (tile.row + tile.token(args, r)) * args.tokens.stride;
  if (r >= tile.n_queries) return args.tokens.k + row + tile.head * shape.head_dim;
  const int head = tile.head * shape.group() + (tile.first + r) % shape.group();
  return args.tokens.q + row + static_cast<int64_t>(head) * shape.head_dim;
}

// Writes channel c of tokens.out for row r of the tile, a query, if there is such a channel.
__device__ inline void WriteOut(const AttendArgs& args, const Tile& tile, int r, int c,
                                float value) {
  const AttentionShape& shape = args.blocks.shape;
  if (c >= shape.value_head_dim) return;
  const int head = tile.head * shape.group() + (tile.first + r) % shape.group();
  const int64_t row = tile.row + tile.token(args, r);
  const int64_t at = (row * shape.n_heads + head) * shape.value_head_dim + c;
  if (args.tokens.out_dtype == DType::kBF16) {
    static_cast<uint16_t*>(args.tokens.out)[at] = static_cast<uint16_t>(PackBF16(value, 0.0f));
  } else {
    static_cast<float*>(args.tokens.out)[at] = value;
  }
}

// 2^x or e^x. Both give exactly 1 for 0 and 0 for the distance from kLowestScore to a score.
template <bool kBase2>
__device__ inline float Exponential(float x) {
  if constexpr (kBase2) {
    return Exp2Approx(x);
  } else {
    return expf(x);
  }
}

// Merges a later segment (max, sum) into the earlier ones:
//   M' = max(M, m), L' = L exp(M - M') + l exp(m - M'), and A' = A keep + a add alike.
// A segment without an open slot (m = kLowestScore, l = a = 0) changes nothing; the first one with
// an open slot is kept as it is, since M, L and A are kLowestScore, 0 and 0 before it.
struct FoldFactors {
  float keep, add;
};
template <bool kBase2>
__device__ inline FoldFactors Fold(float max, float sum, float& folded_max, float& folded_sum) {
  const float new_max = folded_max > max ? folded_max : max;
  const FoldFactors factors = {Exponential<kBase2>(folded_max - new_max),
                               Exponential<kBase2>(max - new_max)};
  folded_sum = fmaf(folded_sum, factors.keep, sum * factors.add);
  folded_max = new_max;
  return factors;
}
__device__ inline float FoldValue(const FoldFactors& factors, float folded, float value) {
  return fmaf(folded, factors.keep, value * factors.add);
}

// Row r of a segment's part of the tile's softmax.
__device__ inline float* PartialRow(const AttendArgs& args, const Tile& tile, int segment, int r) {
  const int64_t part = static_cast<int64_t>(tile.index) * args.segments + segment;
  return args.partial + (part * args.partial_rows + r) * (kPartialHeader + args.value_stride);
}
__device__ inline void WritePartialBest(const AttendArgs& args, const Tile& tile, int r,
                                        Best best) {
  float* row = PartialRow(args, tile, tile.begin_block / kCudaSegmentBlocks, r);
  row[0] = best.score;
  row[1] = __int_as_float(best.slot);
}

// True in the thread block that is the last of its tile to have written its part; it sees all
// parts. Fences are cumulative: the barrier puts the writes of the whole block before thread 0's
// fence, which is before its count; and what thread 0 saw counted is before its second fence and,
// through the other barrier, before the reads of the whole block.
__device__ inline bool IsLastOfTile(const AttendArgs& args, const Tile& tile) {
  __syncthreads();
  bool last = false;
  if (threadIdx.x == 0) {
    __threadfence();
    const auto others = static_cast<uint32_t>(tile.n_segments - 1);
    last = atomicAdd(args.finished + tile.index, 1u) == others;
    if (last) {
      __threadfence();
      args.finished[tile.index] = 0;
    }
  }
  return __syncthreads_or(last) != 0;
}

// Merges the parts of a tile's softmax, from the first to the last segment, into the output.
// Volatile: other multiprocessors wrote them.
template <bool kBase2>
__device__ inline void FoldPartials(const AttendArgs& args, const Tile& tile) {
  const int value_head_dim = args.blocks.shape.value_head_dim;
  const int threads = static_cast<int>(blockDim.x), thread = static_cast<int>(threadIdx.x);
  const int64_t step =
      static_cast<int64_t>(args.partial_rows) * (kPartialHeader + args.value_stride);
  for (int i = thread; i < tile.n_queries * value_head_dim; i += threads) {
    const int r = i / value_head_dim, c = i % value_head_dim;
    const volatile float* part = PartialRow(args, tile, 0, r);
    float max = kLowestScore, sum = 0, value = 0;
#pragma unroll 4
    for (int segment = 0; segment < tile.n_segments; ++segment, part += step) {
      const FoldFactors factors = Fold<kBase2>(part[0], part[1], max, sum);
      value = FoldValue(factors, value, part[kPartialHeader + c]);
    }
    WriteOut(args, tile, r, c, value / sum);
  }
  for (int r = tile.n_queries + thread; r < tile.n_rows; r += threads) {
    const volatile float* part = PartialRow(args, tile, 0, r);
    Best best = NoBest();
    for (int segment = 0; segment < tile.n_segments; ++segment, part += step) {
      best = BetterSlot(best, {part[0], __float_as_int(part[1])});
    }
    WriteBest(args, tile, r, best);
  }
}

}  // namespace ovq::kernels::cuda
