// AttendWave: chooses the kernels and grids for a wave. Sequences with few tokens go to one kernel,
// those with many to another; float32 or tensor cores.
#include <algorithm>
#include <limits>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "kernels/common/cuda/cuda_device.h"
#include "kernels/mixers/common/chunk_update.h"
#include "kernels/mixers/common/cuda/attend.h"
#include "kernels/mixers/common/cuda/attend_block.cuh"
#include "kernels/mixers/common/cuda/attend_launch.h"
#include "kernels/mixers/common/cuda/attend_tile.cuh"
#include "kernels/mixers/common/slots.h"

namespace ovq::kernels {
namespace cuda {
namespace {

constexpr int kMmaRows = 16;
constexpr int kMaxMmaDim = 256;
constexpr int32_t kNoLimit = std::numeric_limits<int32_t>::max();
constexpr size_t kMaxPartialBytes = size_t{256} << 20;

// The sequences that have min_tokens to max_tokens tokens in a wave.
struct WaveBounds {
  int64_t sequences = 0;
  int32_t tokens = 0;         // most tokens of one sequence
  int32_t recent_blocks = 0;  // most recent blocks of one sequence's tokens
};

WaveBounds FindWaveBounds(const AttentionBlocks& blocks, const BatchSequences& seqs, int wave,
                          int32_t min_tokens, int32_t max_tokens) {
  WaveBounds bounds;
  if (seqs.one_token_each()) {
    if (wave == 0 && min_tokens <= 1 && max_tokens >= 1) bounds = {seqs.n_seqs(), 1, 1};
    return bounds;
  }
  for (int s = 0; s < seqs.n_seqs(); ++s) {
    const WaveTokens tokens = TokensInWave(seqs.start_pos[s], seqs.token_begin[s],
                                           seqs.sequence_length(s), blocks.wave_span, wave);
    const int64_t n_tokens = tokens.end - tokens.begin;
    if (n_tokens < std::max(min_tokens, 1) || n_tokens > max_tokens) continue;
    const int64_t origin = blocks.origin(tokens.begin);
    const int64_t touched =
        (tokens.end - 1 - origin) / kBlockSlots - (tokens.begin - origin) / kBlockSlots + 1;
    ++bounds.sequences;
    bounds.tokens = std::max(bounds.tokens, static_cast<int32_t>(n_tokens));
    bounds.recent_blocks = std::max(bounds.recent_blocks, static_cast<int32_t>(touched));
  }
  return bounds;
}

// The most segments that any token of this batch attends to.
int64_t MostSegments(const AttentionBlocks& blocks, const BatchSequences& seqs) {
  const int64_t met = MostBlocks(blocks, seqs);
  return std::max<int64_t>(1, (met + kCudaSegmentBlocks - 1) / kCudaSegmentBlocks);
}

// The kernels for sequences with few and with many tokens in a wave.
struct Choice {
  bool tensor_cores;
  int small_rows, large_rows;  // of a tile
  int n_stages;                // of the tensor cores' kernel for many tokens
  int32_t small_tokens;        // most tokens for the first kernel; 0: the second does all
};

Choice Choose(const AttentionBlocks& blocks, int value_stride, size_t max_shared) {
  const int d = blocks.shape.head_dim, per_token = blocks.shape.group() + (blocks.probe ? 1 : 0);
  Choice choice = {};
  choice.tensor_cores = IsExactInBF16(blocks.dtype) && blocks.compute_dtype == DType::kBF16 &&
                        d % kMmaRows == 0 && d <= kMaxMmaDim && value_stride <= kMaxMmaDim;
  if (choice.tensor_cores) {
    const PrefillPlan plan = PlanAttendPrefill(blocks.dtype, d, value_stride, max_shared);
    // The widest heads in types with scales need more shared memory than the smallest GPUs allow a
    // thread block.
    choice.tensor_cores = plan.n_warps > 0;
    choice.small_rows = kMmaRows;
    choice.large_rows = kMmaRows * plan.n_warps;
    choice.n_stages = plan.n_stages;
  }
  if (choice.tensor_cores) {
    // A token of a large group fills several small tiles, which read the same blocks.
    choice.small_tokens = AttendDecodeShared(blocks.dtype, d, value_stride) <= max_shared
                              ? std::max(1, choice.small_rows / per_token)
                              : 0;
  } else {
    choice.small_rows = 4;
    choice.large_rows = AttendFmaShared(d, value_stride, 16) <= max_shared ? 16 : 4;
    choice.small_tokens = choice.small_rows / per_token;
  }
  return choice;
}

// Splits the segments of the tiles from args.whole_tiles on over thread blocks, unless their parts
// would need too much memory. Returns the number of thread blocks.
int64_t SplitTiles(DeviceContext& context, ScratchScope& scope, int64_t tiles,
                   int64_t most_segments, AttendArgs& args) {
  const int64_t split = tiles - args.whole_tiles;
  const size_t floats = static_cast<size_t>(split * most_segments) * args.partial_rows *
                        (kPartialHeader + args.value_stride);
  if (split == 0 || split > CudaDevice::kCounters || floats * sizeof(float) > kMaxPartialBytes) {
    args.whole_tiles = static_cast<int32_t>(tiles);
    return tiles;
  }
  args.segments = static_cast<int32_t>(most_segments);
  args.partial = scope.Allocate<float>(floats);
  args.finished = context.cuda().counters;
  return args.whole_tiles + split * most_segments;
}

// The tiles that are not split. Few tokens: none. Many: as many for each multiprocessor as for the
// others; or all of them, where the others would hardly count.
int64_t WholeTiles(DeviceContext& context, bool is_small, int64_t tiles) {
  constexpr int64_t kManyEach = 8;
  const int64_t n = context.cuda().n_multiprocessors;
  return is_small ? 0 : tiles >= kManyEach * n ? tiles : tiles / n * n;
}

}  // namespace

int RecentBlocks(const AttentionBlocks& blocks, const BatchSequences& seqs, int wave) {
  return FindWaveBounds(blocks, seqs, wave, 1, kNoLimit).recent_blocks;
}

void AttendWave(DeviceContext& context, const AttentionArgs& layer_args, int wave, Split split) {
  const AttentionBlocks& blocks = layer_args.blocks;
  const BatchSequences& seqs = layer_args.seqs;
  const int value_stride = ValueStride(blocks.shape.value_head_dim);
  const int group = blocks.shape.group();
  const Choice choice = Choose(blocks, value_stride, context.cuda().max_shared_bytes);
  for (const bool is_small : {true, false}) {
    const WaveBounds bounds =
        is_small ? FindWaveBounds(blocks, seqs, wave, 1, choice.small_tokens)
                 : FindWaveBounds(blocks, seqs, wave, choice.small_tokens + 1, kNoLimit);
    if (bounds.sequences == 0) continue;
    const int tile_rows = is_small ? choice.small_rows : choice.large_rows;
    AttendArgs args = {.blocks = blocks,
                       .wave = {seqs.device, wave},
                       .tokens = layer_args.tokens,
                       .value_stride = value_stride,
                       .min_tokens = is_small ? 1 : choice.small_tokens + 1,
                       .max_tokens = is_small ? choice.small_tokens : kNoLimit,
                       .tile_rows = tile_rows,
                       .probes_beside = choice.tensor_cores && !is_small,
                       .n_stages = choice.n_stages};
    const int tokens = std::min(bounds.tokens, kBlockSlots), queries = tokens * group,
              list = queries + (blocks.probe ? tokens : 0);
    args.block_tiles = ((args.probes_beside ? queries : list) + tile_rows - 1) / tile_rows;
    args.partial_rows = std::min(args.probes_beside ? 2 * tile_rows : tile_rows, list);
    args.tiles = args.block_tiles * bounds.recent_blocks;
    const int64_t tiles = int64_t{seqs.n_seqs()} * blocks.shape.n_kv_heads * args.tiles;
    ScratchScope scope(context);
    const int64_t most_segments = MostSegments(blocks, seqs);
    const bool splits = split == Split::kAlways || (split == Split::kAuto && most_segments > 1);
    args.whole_tiles =
        static_cast<int32_t>(!splits                   ? tiles
                             : split == Split::kAlways ? 0
                                                       : WholeTiles(context, is_small, tiles));
    const auto grid = static_cast<uint32_t>(SplitTiles(context, scope, tiles, most_segments, args));
    if (!choice.tensor_cores) {
      LaunchAttendFma(context, args, grid, tile_rows);
    } else if (is_small) {
      LaunchAttendDecode(context, args, grid);
    } else {
      LaunchAttendPrefill(context, args, grid);
    }
  }
}

Occupancy RequestOccupancy(DeviceContext& context, void (*kernel)(AttendArgs), size_t shared_bytes,
                           int most) {
  const auto* function = reinterpret_cast<const void*>(kernel);
  AllowShared(context, function, shared_bytes);
  int of_multiprocessor = 0, reserved = 0;
  CheckCuda(cudaDeviceGetAttribute(&of_multiprocessor, cudaDevAttrMaxSharedMemoryPerMultiprocessor,
                                   context.cuda().ordinal));
  CheckCuda(cudaDeviceGetAttribute(&reserved, cudaDevAttrReservedSharedMemoryPerBlock,
                                   context.cuda().ordinal));
  Occupancy occupancy = {};
  occupancy.wanted =
      std::min(most, of_multiprocessor / (static_cast<int>(shared_bytes) + reserved));
  CheckCuda(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&occupancy.blocks, function,
                                                          kBlockThreads, shared_bytes));
  return occupancy;
}

namespace {

constexpr size_t kMaxRingBytes = size_t{256} << 20;

// The batch's sequences [begin, end), whose positions the host must know.
BatchSequences SomeSequences(const BatchSequences& seqs, int begin, int end) {
  BatchSequences some = seqs;
  const auto first = static_cast<size_t>(begin), n = static_cast<size_t>(end - begin);
  some.token_begin = seqs.token_begin.subspan(first, n + 1);
  some.start_pos = seqs.start_pos.subspan(first, n);
  some.state = seqs.state.subspan(first, n);
  some.device.token_begin += begin;
  some.device.start_pos += begin;
  some.device.state += begin;
  return some;
}

// Blocks whose ring, in scratch memory at `shared`, has slots for all tokens of the batch, of which
// a query sees as many as in the state. Without memory, only strides.
AttentionBlocks WithLargeRing(AttentionBlocks blocks, const BatchSequences& seqs) {
  const int64_t heads = blocks.shape.n_kv_heads;
  blocks.seen_blocks = blocks.ring();
  const int32_t ring = blocks.ring() - 1 + RecentBlocks(blocks, seqs, 0);
  const auto place = [&](size_t offset, size_t bytes) {
    return BlockPlaces{.place = {offset, ring * bytes, bytes}, .ring = ring};
  };
  const size_t keys = blocks.recent_keys.place.index_stride,
               values = blocks.recent_values.place.index_stride;
  blocks.recent_keys = place(0, keys);
  blocks.recent_values = place(heads * ring * keys, values);
  blocks.recent_keys.seq_stride = blocks.recent_values.seq_stride = heads * ring * (keys + values);
  return blocks;
}

// Attends for all tokens of the sequences at once, in a ring that is large enough.
void AttendInLargeRing(DeviceContext& context, const AttentionArgs& args, Split split) {
  ScratchScope scope(context);
  AttentionBlocks large = WithLargeRing(args.blocks, args.seqs);
  large.recent_keys.shared = large.recent_values.shared = scope.Allocate<std::byte>(
      static_cast<size_t>(args.seqs.n_seqs()) * large.recent_keys.seq_stride);
  CopyRecent(context, args.blocks, large, args.seqs);
  StoreRecent(context, {large, args.seqs, args.tokens}, 0);
  StoreRecent(context, args, 0);
  AttendWave(context, {large, args.seqs, args.tokens}, 0, split);
}

// Sliding windows without waves. False: they would need too much memory, or this is no sliding
// window, or one wave is enough. Neighbours in the batch go together if both or none of them have
// more tokens than their ring has slots to spare.
bool AttendWindows(DeviceContext& context, const AttentionArgs& args, Split split) {
  AttentionBlocks blocks = args.blocks;
  const BatchSequences& seqs = args.seqs;
  const bool slides = blocks.window > 0 && blocks.recent_keys.ring > 0 &&
                      blocks.recent_values.ring == blocks.recent_keys.ring &&
                      blocks.recent_keys.shared == nullptr && blocks.fixed_live == 0 &&
                      blocks.live.slots == nullptr && !blocks.probe &&
                      blocks.merge == Merge::kNothing;
  if (!slides || CountWaves(seqs, blocks.wave_span) == 1) return false;
  blocks.wave_span = 0;
  const int spare = blocks.ring() * kBlockSlots - blocks.window + 1;
  std::vector<BatchSequences> parts;
  for (int begin = 0, end = 0; begin < seqs.n_seqs(); begin = end) {
    const auto fits = [&](int s) { return seqs.sequence_length(s) <= spare; };
    while (end < seqs.n_seqs() && fits(end) == fits(begin)) ++end;
    parts.push_back(SomeSequences(seqs, begin, end));
    const size_t bytes = static_cast<size_t>(end - begin) *
                         WithLargeRing(blocks, parts.back()).recent_keys.seq_stride;
    if (!fits(begin) && bytes > kMaxRingBytes) return false;
  }
  for (const BatchSequences& part : parts) {
    if (part.sequence_length(0) > spare) {
      AttendInLargeRing(context, {blocks, part, args.tokens}, split);
    } else {
      StoreRecent(context, {blocks, part, args.tokens}, 0);
      AttendWave(context, {blocks, part, args.tokens}, 0, split);
    }
  }
  return true;
}

}  // namespace

// A wave attends to the dictionary as it was, then merges into it.
void AttendWaves(DeviceContext& context, const AttentionArgs& args, Split split,
                 const WaveFn& prepare, const WaveFn& update) {
  if (!prepare && !update && AttendWindows(context, args, split)) return;
  const int n_waves = CountWaves(args.seqs, args.blocks.wave_span);
  for (int i = 0; i < n_waves; ++i) {
    const DeviceWave wave = {args.seqs.device, i};
    if (prepare) prepare(wave);
    if (!args.tokens.stored) StoreRecent(context, args, i);
    AttendWave(context, args, i, split);
    if (args.blocks.merge != Merge::kNothing) UpdateChunksCuda(context, args, i);
    if (update) update(wave);
  }
}

}  // namespace cuda

absl::Status PrepareAttendCuda(DeviceContext& context, const AttentionBlocks& blocks) {
  const int value_stride = ValueStride(blocks.shape.value_head_dim);
  const cuda::Choice choice = cuda::Choose(blocks, value_stride, context.cuda().max_shared_bytes);
  if (!choice.tensor_cores) return absl::OkStatus();
  const auto check = [&](const char* what, const cuda::Occupancy& occupancy) {
    if (occupancy.blocks >= occupancy.wanted) return absl::OkStatus();
    return absl::FailedPreconditionError(
        absl::StrCat("device 'cuda': expected ", occupancy.wanted, " thread blocks of ", what,
                     " attention (head_dim ", blocks.shape.head_dim, ") on a multiprocessor, ",
                     context.cuda().name, " takes ", occupancy.blocks));
  };
  const absl::Status prefill =
      check("prefill",
            cuda::PrepareAttendPrefill(context, blocks.dtype, blocks.shape.head_dim, value_stride));
  if (!prefill.ok() || choice.small_tokens == 0) return prefill;
  return check("decode", cuda::PrepareAttendDecode(context, blocks.dtype, blocks.shape.head_dim,
                                                   value_stride));
}

void AttendCuda(DeviceContext& context, const AttentionArgs& layer_args) {
  AttendWavesCuda(context, layer_args, {}, {});
}

void AttendWavesCuda(DeviceContext& context, const AttentionArgs& layer_args,
                     const std::function<void(const DeviceWave&)>& prepare,
                     const std::function<void(const DeviceWave&)>& update) {
  cuda::AttendWaves(context, layer_args, cuda::Split::kAuto, prepare, update);
}

}  // namespace ovq::kernels
