// Attention on the CPU (AttendCpu): one task per kv head of every sequence processes its tokens in
// order. Where there are fewer tasks than threads, threads share a head's blocks.
#include <algorithm>

#include "kernels/common/parallel.h"
#include "kernels/mixers/common/attend.h"
#include "kernels/mixers/common/block_attention.h"
#include "kernels/mixers/common/chunk_update.h"

namespace ovq::kernels {
namespace {

// The hooks of AttendTilesCpu.
struct Hooks {
  const std::function<void(const TileTokens&)>& prepare;
  const std::function<void(const FullChunk&, int thread)>& update;
  const std::function<void(const TileTokens&, int thread)>& after;
};

// Buffers of a tile, sized for the longest, so that parallel tasks allocate nothing.
struct TileBuffers {
  KvBlock* blocks;
  const float** rows;  // [tokens * (group + 1)]
  int32_t* position;   // [tokens * group]
  float* out;          // [tokens * group][value_stride]
};

// Buffers of one thread.
struct ThreadBuffers {
  float* scratch;
  ChunkBuffers chunk;
};

int MostQueries(const AttentionArgs& args) {
  return std::min(kBlockSlots, args.seqs.max_sequence_length()) * args.blocks.shape.group();
}
// The most rows of a tile, probes included.
int MostRows(const AttentionArgs& args) {
  return MostQueries(args) + std::min(kBlockSlots, args.seqs.max_sequence_length());
}

TileBuffers MakeTileBuffers(ScratchScope& scope, const AttentionArgs& args) {
  const auto queries = static_cast<size_t>(MostQueries(args)),
             value_stride = static_cast<size_t>(ValueStride(args.blocks.shape.value_head_dim));
  return {
      .blocks = scope.Allocate<KvBlock>(static_cast<size_t>(MostBlocks(args.blocks, args.seqs))),
      .rows = scope.Allocate<const float*>(static_cast<size_t>(MostRows(args))),
      .position = scope.Allocate<int32_t>(queries),
      .out = scope.Allocate<float>(queries * value_stride)};
}

ThreadBuffers MakeThreadBuffers(ScratchScope& scope, const AttentionArgs& args) {
  const AttentionShape& shape = args.blocks.shape;
  ThreadBuffers buffers = {.scratch = scope.Allocate<float>(BlockAttentionScratch(
                               MostRows(args), shape.head_dim, ValueStride(shape.value_head_dim))),
                           .chunk = {}};
  if (args.blocks.merge != Merge::kNothing) buffers.chunk = MakeChunkBuffers(scope, args.blocks);
  return buffers;
}

// The tile of a head that begins with the token at `position`. Tiles end where a recent block or a
// span ends, so that all tokens of one read the same blocks as they would alone.
TileTokens TileAt(const AttentionArgs& args, int s, int kv_head, int64_t position) {
  const AttentionBlocks& blocks = args.blocks;
  const int64_t start = args.seqs.start_pos[s], span = blocks.wave_span,
                at = position - blocks.origin(position),
                element = position - blocks.span_begin(position),
                wave = span > 0 ? position / span - start / span : 0;
  int64_t n_tokens = std::min(kBlockSlots - at % kBlockSlots, args.seqs.end_pos(s) - position);
  if (span > 0) n_tokens = std::min(n_tokens, span - element);
  return {.sequence = s,
          .kv_head = kv_head,
          .session = args.seqs.state[s],
          .row = args.seqs.token_begin[s] + position - start,
          .element = element,
          .block = at / kBlockSlots,
          .slot = static_cast<int>(at % kBlockSlots),
          .n_tokens = static_cast<int>(n_tokens),
          .n_live = blocks.LiveAt(s, kv_head, wave)};
}

// The first recent block that a tile reads.
int64_t FirstRecent(const AttentionBlocks& blocks, const TileTokens& tile) {
  return blocks.ring() > 0 ? std::max<int64_t>(0, tile.block + 1 - blocks.ring()) : 0;
}

void Store(const AttentionArgs& args, const TileTokens& tile) {
  const AttentionBlocks& blocks = args.blocks;
  const int d = blocks.shape.head_dim, dv = blocks.shape.value_head_dim;
  void* keys = blocks.recent_keys.At(tile.session, tile.sequence, tile.kv_head, tile.block);
  void* values = blocks.recent_values.At(tile.session, tile.sequence, tile.kv_head, tile.block);
  for (int t = 0; t < tile.n_tokens; ++t) {
    const int64_t row = (tile.row + t) * args.tokens.stride;
    if (blocks.recent_keys.shared == nullptr) {
      StoreKey(args.tokens.k + row + int64_t{tile.kv_head} * d, d, blocks.dtype, keys,
               tile.slot + t, blocks.KeyScale(tile.kv_head));
    }
    StoreValue(args.tokens.v + row + int64_t{tile.kv_head} * dv, dv, ValueStride(dv), blocks.dtype,
               values, tile.slot + t);
  }
}

// The blocks that the tile's rows read. Positions count from the beginning of the tile's own block.
std::span<const KvBlock> ListBlocks(const AttentionBlocks& blocks, const TileTokens& tile,
                                    KvBlock* list) {
  const auto at = [&](const BlockPlaces& places, int64_t block) {
    return places.At(tile.session, tile.sequence, tile.kv_head, block);
  };
  size_t n = 0;
  for (int32_t b = 0; b < NumBlocks(tile.n_live); ++b) {
    list[n++] = {.keys = at(blocks.dictionary_keys, b),
                 .values = at(blocks.dictionary_values, b),
                 .bias = blocks.has_bias()
                             ? reinterpret_cast<const float*>(at(blocks.dictionary_bias, b))
                             : nullptr,
                 .live = std::min(kBlockSlots, tile.n_live - b * kBlockSlots),
                 .begin = 0};
  }
  for (int64_t b = FirstRecent(blocks, tile); b <= tile.block; ++b) {
    list[n++] = {.keys = at(blocks.recent_keys, b),
                 .values = at(blocks.recent_values, b),
                 .bias = nullptr,
                 .live = -1,
                 .begin = static_cast<int32_t>((b - tile.block) * kBlockSlots)};
  }
  return {list, n};
}

template <class T>
void WriteOut(const AttentionArgs& args, const TileTokens& tile, const float* from) {
  const AttentionShape& shape = args.blocks.shape;
  for (int t = 0; t < tile.n_tokens; ++t) {
    for (int g = 0; g < shape.group(); ++g) {
      const int64_t head =
          (tile.row + t) * shape.n_heads + int64_t{tile.kv_head} * shape.group() + g;
      T* to = static_cast<T*>(args.tokens.out) + head * shape.value_head_dim;
      for (int c = 0; c < shape.value_head_dim; ++c) to[c] = FromFloat<T>(from[c]);
      from += ValueStride(shape.value_head_dim);
    }
  }
}

BlockAttention MakeBlockAttention(const AttentionArgs& args, const TileTokens& tile,
                                  const TileBuffers& buffers, float* scratch) {
  const AttentionBlocks& blocks = args.blocks;
  const int group = blocks.shape.group(), d = blocks.shape.head_dim;
  for (int t = 0; t < tile.n_tokens; ++t) {
    const int64_t row = (tile.row + t) * args.tokens.stride;
    for (int g = 0; g < group; ++g) {
      buffers.rows[t * group + g] = args.tokens.q + row + (int64_t{tile.kv_head} * group + g) * d;
      buffers.position[t * group + g] = tile.slot + t;
    }
    buffers.rows[tile.n_tokens * group + t] = args.tokens.k + row + int64_t{tile.kv_head} * d;
  }
  const bool probe = blocks.probe && tile.n_live > 0;
  return {.dtype = blocks.dtype,
          .head_dim = d,
          .value_stride = ValueStride(blocks.shape.value_head_dim),
          .window = blocks.window,
          .blocks = ListBlocks(blocks, tile, buffers.blocks),
          .rows = buffers.rows,
          .n_queries = tile.n_tokens * group,
          .query_position = buffers.position,
          .out = buffers.out,
          .n_probes = probe ? tile.n_tokens : 0,
          .best_score = blocks.best_score.At<float>(tile.session, tile.kv_head, tile.element),
          .best_slot = blocks.best_slot.At<int32_t>(tile.session, tile.kv_head, tile.element),
          .scratch = scratch};
}

void BeginTile(const AttentionArgs& args, const TileTokens& tile, const Hooks& hooks) {
  if (hooks.prepare) hooks.prepare(tile);
  Store(args, tile);
}

// Finishes a tile whose attention is in `out`.
void EndTile(const AttentionArgs& args, const TileTokens& tile, const float* out,
             const Hooks& hooks, const ChunkBuffers& chunk_buffers, int thread) {
  if (args.tokens.out_dtype == DType::kBF16) {
    WriteOut<BF16>(args, tile, out);
  } else {
    WriteOut<float>(args, tile, out);
  }
  if (hooks.after) hooks.after(tile, thread);
  const int64_t span = args.blocks.wave_span;
  if (span == 0 || tile.element + tile.n_tokens < span) return;
  const int s = tile.sequence;
  const int64_t start = args.seqs.start_pos[s],
                end = start + tile.row - args.seqs.token_begin[s] + tile.n_tokens;
  const FullChunk chunk = {
      .session = tile.session,
      .kv_head = tile.kv_head,
      .chunk = end / span - 1,
      .n_old = tile.n_live,
      .n_next = args.blocks.LiveAt(s, tile.kv_head, end / span - start / span)};
  if (args.blocks.merge != Merge::kNothing) UpdateChunkCpu(args.blocks, chunk, chunk_buffers);
  if (hooks.update) hooks.update(chunk, thread);
}

void AttendHead(const AttentionArgs& args, int s, int kv_head, const TileBuffers& tile_buffers,
                const ThreadBuffers& buffers, const Hooks& hooks, int thread) {
  const int64_t end = args.seqs.end_pos(s);
  for (int64_t position = args.seqs.start_pos[s]; position < end;) {
    const TileTokens tile = TileAt(args, s, kv_head, position);
    BeginTile(args, tile, hooks);
    AttendBlocksCpu(MakeBlockAttention(args, tile, tile_buffers, buffers.scratch));
    EndTile(args, tile, tile_buffers.out, hooks, buffers.chunk, thread);
    position += tile.n_tokens;
  }
}

// One head's state in a round of SharedHeads.
struct SharedHead {
  int64_t position;  // position of its next tile
  TileTokens tile;
  TileBuffers buffers;
  float* sums;               // sums of the segments so far, then of the next ones, each on its own
  BlockAttention attention;  // no blocks: the head has no tile in this round
};

// Heads whose blocks all threads share. A round has one tile of each head; threads compute some of
// its segments at a time, dynamically scheduled, and one thread folds them. The bits are those of
// AttendHead.
class SharedHeads {
 public:
  SharedHeads(DeviceContext& context, const AttentionArgs& args,
              std::span<const ThreadBuffers> buffers, const Hooks& hooks)
      : context_(context),
        args_(args),
        buffers_(buffers),
        hooks_(hooks),
        scope_(context),
        n_heads_(int64_t{args.seqs.n_seqs()} * args.blocks.shape.n_kv_heads),
        width_(
            static_cast<int>((kSegmentsOfThread * context.n_threads() + n_heads_ - 1) / n_heads_)),
        segment_floats_(
            SegmentSumsFloats(MostRows(args), ValueStride(args.blocks.shape.value_head_dim))),
        heads_(scope_.Allocate<SharedHead>(static_cast<size_t>(n_heads_))) {
    for (int64_t i = 0; i < n_heads_; ++i) {
      heads_[i] = {
          .position = args.seqs.start_pos[sequence(i)],
          .tile = {},
          .buffers = MakeTileBuffers(scope_, args),
          .sums = scope_.Allocate<float>(segment_floats_ * static_cast<size_t>(1 + width_)),
          .attention = {}};
    }
  }

  void Run() {
    while (Begin()) {
      for (int first = 0; first < most_segments_; first += width_) {
        ParallelFor(context_, n_heads_ * width_, [&](int64_t i, int thread) {
          AttendNext(heads_[i / width_], first, static_cast<int>(i % width_), thread);
        });
        ParallelFor(context_, n_heads_,
                    [&](int64_t i, int thread) { FoldNext(heads_[i], first, thread); });
      }
    }
  }

 private:
  // Segments computed per thread between two barriers; few, so that memory does not grow with the
  // context.
  static constexpr int64_t kSegmentsOfThread = 16;

  int sequence(int64_t head) const {
    return static_cast<int>(head / args_.blocks.shape.n_kv_heads);
  }
  static bool has_tile(const SharedHead& head) { return !head.attention.blocks.empty(); }
  SegmentSums SumsAt(const SharedHead& head, int place) const {
    return SegmentSumsIn(head.sums + segment_floats_ * static_cast<size_t>(place),
                         head.attention.n_queries, head.attention.n_probes,
                         head.attention.value_stride);
  }

  // Moves to the next tile of every head; false if there is none.
  bool Begin() {
    ParallelFor(context_, n_heads_, [&](int64_t i, int) {
      SharedHead& head = heads_[i];
      head.attention = {};
      if (head.position >= args_.seqs.end_pos(sequence(i))) return;
      head.tile = TileAt(args_, sequence(i), static_cast<int>(i % args_.blocks.shape.n_kv_heads),
                         head.position);
      BeginTile(args_, head.tile, hooks_);
      head.attention = MakeBlockAttention(args_, head.tile, head.buffers, nullptr);
    });
    most_segments_ = 0;
    for (int64_t i = 0; i < n_heads_; ++i) {
      if (!has_tile(heads_[i])) continue;
      most_segments_ = std::max(most_segments_, heads_[i].attention.n_segments());
    }
    return most_segments_ > 0;
  }

  void AttendNext(const SharedHead& head, int first, int i, int thread) const {
    const int segment = first + i;
    if (!has_tile(head) || segment >= head.attention.n_segments()) return;
    const size_t end = static_cast<size_t>(segment + 1) * kCpuSegmentBlocks;
    AttendSegmentCpu(head.attention, segment, std::min(end, head.attention.blocks.size()),
                     buffers_[thread].scratch, SumsAt(head, segment == 0 ? 0 : 1 + i));
  }

  void FoldNext(SharedHead& head, int first, int thread) {
    const int n = head.attention.n_segments(), end = std::min(first + width_, n);
    if (!has_tile(head) || first >= n) return;
    const SegmentSums total = SumsAt(head, 0);
    for (int s = std::max(first, 1); s < end; ++s) {
      FoldSegmentCpu(head.attention, SumsAt(head, 1 + s - first), total);
    }
    if (end < n) return;
    FinishSegments(head.attention, total);
    EndTile(args_, head.tile, head.buffers.out, hooks_, buffers_[thread].chunk, thread);
    head.position += head.tile.n_tokens;
  }

  DeviceContext& context_;
  const AttentionArgs& args_;
  const std::span<const ThreadBuffers> buffers_;
  const Hooks& hooks_;
  ScratchScope scope_;
  const int64_t n_heads_;
  const int width_;  // segments of a head computed at a time
  const size_t segment_floats_;
  int most_segments_ = 0;  // most segments of any head in this round
  SharedHead* heads_;
};

}  // namespace

bool SharesHeads(const AttentionArgs& args, int n_threads) {
  const int64_t n_heads = int64_t{args.seqs.n_seqs()} * args.blocks.shape.n_kv_heads;
  if (n_threads == 1 || n_heads >= 2 * int64_t{n_threads}) return false;
  // Without sharing, a free thread takes the next head. Sharing costs the barriers of a round.
  std::vector<int64_t> loads(static_cast<size_t>(n_threads));
  int64_t total = 0;
  for (int s = 0; s < args.seqs.n_seqs(); ++s) {
    for (int h = 0; h < args.blocks.shape.n_kv_heads; ++h) {
      const TileTokens tile = TileAt(args, s, h, args.seqs.start_pos[s]);
      const int64_t blocks =
          NumBlocks(tile.n_live) + tile.block + 1 - FirstRecent(args.blocks, tile);
      *std::ranges::min_element(loads) += blocks;
      total += blocks;
    }
  }
  const int64_t alone = *std::ranges::max_element(loads),
                shared = total / n_threads + 2 * kCpuSegmentBlocks;
  return 10 * shared <= 9 * alone;
}

void AttendCpu(DeviceContext& context, const AttentionArgs& args) {
  AttendTilesCpu(context, args, {}, {});
}

void AttendTilesCpu(DeviceContext& context, const AttentionArgs& args,
                    const std::function<void(const TileTokens&)>& prepare,
                    const std::function<void(const FullChunk&, int thread)>& update,
                    const std::function<void(const TileTokens&, int thread)>& after) {
  const Hooks hooks = {prepare, update, after};
  ScratchScope scope(context);
  std::vector<ThreadBuffers> buffers;
  for (int i = 0; i < context.n_threads(); ++i) buffers.push_back(MakeThreadBuffers(scope, args));
  if (SharesHeads(args, context.n_threads())) {
    SharedHeads(context, args, buffers, hooks).Run();
    return;
  }
  std::vector<TileBuffers> tile_buffers;
  for (int i = 0; i < context.n_threads(); ++i) {
    tile_buffers.push_back(MakeTileBuffers(scope, args));
  }
  const int heads = args.blocks.shape.n_kv_heads;
  ParallelFor(context, int64_t{args.seqs.n_seqs()} * heads, [&](int64_t task, int thread) {
    AttendHead(args, static_cast<int>(task / heads), static_cast<int>(task % heads),
               tile_buffers[thread], buffers[thread], hooks, thread);
  });
}

}  // namespace ovq::kernels
