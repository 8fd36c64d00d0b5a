// Shared by the attention kernels: the rows that a thread block works on, the blocks of slots that
// these rows read, and the merge of the parts of a row's softmax.
//
// A tile holds rows of one key/value head of one sequence whose tokens lie in one recent block, so
// that all of them meet the same blocks: some of the tokens' queries, which are counted token after
// token, and then, if there are probes, some of the tokens' keys.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/common/cuda/ptx.cuh"
#include "kernels/mixers/common/block_attention.h"
#include "kernels/mixers/common/cuda/attend.h"

namespace ovq::kernels::cuda {

inline constexpr uint32_t kWholeWarp = 0xffffffffu;
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
  int32_t tile_rows = 0;
  // A tile has tile_rows queries and as many probes, from the same index on. Otherwise it has
  // tile_rows of the list of all queries and then all probes.
  bool probes_beside = false;
  int32_t n_stages = 0;  // of the tensor cores' kernels: blocks that are loading or in use
  // Tiles that one thread block computes; each of those that follow is split over `segments` thread
  // blocks, one per segment.
  int32_t whole_tiles = 0, segments = 1;
  int32_t partial_rows = 0;
  // Parts of softmax rows: [split tiles][segments][partial_rows][header, value_stride].
  float* partial = nullptr;
  // [split tiles] thread blocks that have written their part; zero between launches.
  uint32_t* finished = nullptr;
};

// The work of one thread block. Grid x: whole tiles, then split ones, their segments fastest. Tiles
// are ordered by sequence, key/value head, and from the last recent block, which reads most, to the
// first.
struct Tile {
  std::byte* state;
  int32_t sequence, head;
  int32_t index;                     // of (sequence, head, tile)
  int32_t row;                       // of the first token
  int32_t slot;                      // of the first token, in the recent block
  int64_t element;                   // index of the first token in its span
  int32_t first_query, first_probe;  // indices of the tile's first ones
  int32_t n_rows;                    // of the tile
  int32_t n_queries;                 // queries, which come first
  int32_t live;                      // dictionary slots
  int32_t n_dictionary;              // dictionary blocks read; recent ones up to own_block follow
  int32_t n_blocks;
  int64_t own_block;
  bool split;
  int32_t n_segments;
  int32_t begin_block, end_block;  // this thread block's range of [0, n_blocks)

  __device__ int token(const AttendArgs& args, int r) const {
    return r < n_queries ? (first_query + r) / args.blocks.shape.group()
                         : first_probe + r - n_queries;
  }
};

__device__ inline int32_t Smaller(int64_t a, int64_t b) {
  return static_cast<int32_t>(a < b ? a : b);
}
// How many of n, from `first` on, a tile takes that has room for that many.
__device__ inline int32_t Taken(int32_t n, int32_t first, int32_t room) {
  const int32_t left = n > first ? n - first : 0;
  return left < room ? left : room;
}

// Finds the blocks that the tile's rows read, and this thread block's share of them.
__device__ inline void FindBlocks(const AttendArgs& args, int segment, Tile& tile) {
  tile.n_dictionary = static_cast<int32_t>(NumBlocks(tile.live));
  tile.n_blocks = tile.n_dictionary;
  if (tile.n_queries > 0) {
    const int32_t seen = args.blocks.seen();
    tile.n_blocks +=
        seen > 0 ? Smaller(seen, tile.own_block + 1) : static_cast<int32_t>(tile.own_block + 1);
  }
  tile.n_segments = (tile.n_blocks + kCudaSegmentBlocks - 1) / kCudaSegmentBlocks;
  if (tile.n_segments == 0) tile.n_segments = 1;
  tile.begin_block = segment * kCudaSegmentBlocks;
  tile.end_block =
      tile.split ? Smaller(tile.n_blocks, tile.begin_block + kCudaSegmentBlocks) : tile.n_blocks;
}

// Finds which of the queries and probes of n_tokens tokens are the rows of their tile-th tile.
__device__ inline void FindRows(const AttendArgs& args, int tile_index, int n_tokens, Tile& tile) {
  const int32_t first = tile_index * args.tile_rows, queries = n_tokens * args.blocks.shape.group(),
                probes = args.blocks.probe ? n_tokens : 0;
  tile.first_query = first;
  tile.n_queries = Taken(queries, first, args.tile_rows);
  tile.first_probe = args.probes_beside ? first : first > queries ? first - queries : 0;
  tile.n_rows = tile.n_queries + Taken(probes, tile.first_probe,
                                       args.tile_rows - (args.probes_beside ? 0 : tile.n_queries));
}

// False: this thread block has nothing to do. It reads only what is copied to the device before a
// batch's first kernel begins.
__device__ inline bool FindTile(const AttendArgs& args, Tile& tile) {
  const AttentionBlocks& blocks = args.blocks;
  const auto whole = static_cast<uint32_t>(args.whole_tiles),
             segments = static_cast<uint32_t>(args.segments);
  tile.split = blockIdx.x >= whole;
  const uint32_t part = tile.split ? blockIdx.x - whole : 0;
  const uint32_t segment = part % segments;
  const uint32_t index = tile.split ? whole + part / segments : blockIdx.x;
  const uint32_t place =
      static_cast<uint32_t>(args.tiles) - 1 - index % static_cast<uint32_t>(args.tiles);
  const uint32_t sequence_head = index / static_cast<uint32_t>(args.tiles);
  const auto heads = static_cast<uint32_t>(blocks.shape.n_kv_heads);
  tile.index = static_cast<int32_t>(index);
  tile.head = static_cast<int32_t>(sequence_head % heads);
  tile.sequence = static_cast<int32_t>(sequence_head / heads);
  // All loads come before the first branch, so that none waits for another.
  tile.state = args.wave.seqs.state[tile.sequence];
  const WaveTokens tokens = TokensInWave(args.wave, tile.sequence, blocks.wave_span);
  tile.live = blocks.LiveAt(tile.sequence, tile.head, args.wave.index);
  if (tile.state == nullptr) return false;
  const int64_t length = tokens.end - tokens.begin;
  if (length < args.min_tokens || length > args.max_tokens) return false;
  const int64_t begin = tokens.begin - blocks.origin(tokens.begin);
  tile.own_block = begin / kBlockSlots + place / static_cast<uint32_t>(args.block_tiles);
  const int64_t block_begin = tile.own_block * kBlockSlots;
  const int64_t from = begin > block_begin ? begin : block_begin;
  const int64_t to = Smaller(begin + length - block_begin, kBlockSlots) + block_begin;
  if (from >= to) return false;
  tile.slot = static_cast<int32_t>(from - block_begin);
  tile.row = tokens.row + static_cast<int32_t>(from - begin);
  tile.element = tokens.begin - tokens.span_begin + (from - begin);
  FindRows(args, static_cast<int>(place % static_cast<uint32_t>(args.block_tiles)),
           static_cast<int>(to - from), tile);
  if (tile.n_rows == 0) return false;
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

// Whether all slots of the block are open to all queries of the tile.
__device__ inline bool AllOpen(const BlockView& block, int32_t window) {
  if (block.live >= 0) return block.live == kBlockSlots;
  return block.begin <= -kBlockSlots && (window == 0 || kBlockSlots - block.begin <= window);
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
  const int head = tile.head * shape.group() + (tile.first_query + r) % shape.group();
  return args.tokens.q + row + static_cast<int64_t>(head) * shape.head_dim;
}

// The index in tokens.out of channel 0 of row r of the tile, a query.
__device__ inline int64_t OutRow(const AttendArgs& args, const Tile& tile, int r) {
  const AttentionShape& shape = args.blocks.shape;
  const int head = tile.head * shape.group() + (tile.first_query + r) % shape.group();
  const int64_t row = tile.row + tile.token(args, r);
  return (row * shape.n_heads + head) * shape.value_head_dim;
}

// Writes channels c (even) and c + 1 of a row of tokens.out, as far as there are such channels.
__device__ inline void WriteOut(const AttendArgs& args, int64_t row, int c, float x, float y) {
  const int n = args.blocks.shape.value_head_dim;
  const uint32_t packed = PackBF16(x, y);
  const bool is_bf16 = args.tokens.out_dtype == DType::kBF16;
  auto* halves = static_cast<uint16_t*>(args.tokens.out) + row + c;
  auto* floats = static_cast<float*>(args.tokens.out) + row + c;
  if (n % 2 == 0 && c < n) {
    if (is_bf16) *reinterpret_cast<uint32_t*>(halves) = packed;
    if (!is_bf16) *reinterpret_cast<float2*>(floats) = make_float2(x, y);
    return;
  }
  for (int i = 0; i < 2 && c + i < n; ++i) {
    if (is_bf16) halves[i] = static_cast<uint16_t>(packed >> (16 * i));
    if (!is_bf16) floats[i] = i == 0 ? x : y;
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
  const int64_t part =
      static_cast<int64_t>(tile.index - args.whole_tiles) * args.segments + segment;
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
    uint32_t* finished = args.finished + (tile.index - args.whole_tiles);
    last = atomicAdd(finished, 1u) == others;
    if (last) {
      __threadfence();
      *finished = 0;
    }
  }
  return __syncthreads_or(last) != 0;
}

// Merges the parts of a tile's softmax, from the first to the last segment, into the output. A
// thread has four channels of a row, and loads several parts before it merges them.
template <bool kBase2>
__device__ inline void FoldPartials(const AttendArgs& args, const Tile& tile) {
  constexpr int kAtOnce = 9;
  const int fours = args.value_stride / 4;
  const int threads = static_cast<int>(blockDim.x), thread = static_cast<int>(threadIdx.x);
  const int64_t step =
      static_cast<int64_t>(args.partial_rows) * (kPartialHeader + args.value_stride);
  for (int i = thread; i < tile.n_queries * fours; i += threads) {
    const int r = i / fours, c = i % fours * 4;
    float max = kLowestScore, sum = 0, value[4] = {};
    for (int first = 0; first < tile.n_segments; first += kAtOnce) {
      const float* part = PartialRow(args, tile, first, r);
      float2 headers[kAtOnce];
      float4 values[kAtOnce];
#pragma unroll
      for (int j = 0; j < kAtOnce; ++j) {
        if (first + j >= tile.n_segments) break;
        headers[j] = *reinterpret_cast<const float2*>(part + j * step);
        values[j] = *reinterpret_cast<const float4*>(part + j * step + kPartialHeader + c);
      }
#pragma unroll
      for (int j = 0; j < kAtOnce; ++j) {
        if (first + j >= tile.n_segments) break;
        const FoldFactors factors = Fold<kBase2>(headers[j].x, headers[j].y, max, sum);
        const float4 x = values[j];
        value[0] = FoldValue(factors, value[0], x.x);
        value[1] = FoldValue(factors, value[1], x.y);
        value[2] = FoldValue(factors, value[2], x.z);
        value[3] = FoldValue(factors, value[3], x.w);
      }
    }
    const int64_t out = OutRow(args, tile, r);
    WriteOut(args, out, c, value[0] / sum, value[1] / sum);
    WriteOut(args, out, c + 2, value[2] / sum, value[3] / sum);
  }
  for (int r = tile.n_queries + thread; r < tile.n_rows; r += threads) {
    const float* part = PartialRow(args, tile, 0, r);
    Best best = NoBest();
    for (int segment = 0; segment < tile.n_segments; ++segment, part += step) {
      best = BetterSlot(best, {part[0], __float_as_int(part[1])});
    }
    WriteBest(args, tile, r, best);
  }
}

}  // namespace ovq::kernels::cuda
