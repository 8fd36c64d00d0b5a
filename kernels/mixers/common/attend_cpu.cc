// Attention on the CPU: a task for every kv head of every sequence, which takes its rows in order.
#include <algorithm>

#include "kernels/common/parallel.h"
#include "kernels/mixers/common/attend.h"
#include "kernels/mixers/common/block_attention.h"
#include "kernels/mixers/common/chunk_update.h"

namespace ovq {
namespace {

// One thread's buffers, so that parallel tasks allocate nothing; sized for the longest tile.
struct Buffers {
  KvBlock* blocks;
  const float** rows;  // [tokens * (group + 1)]
  int32_t* position;   // [tokens * group]
  float* out;          // [tokens * group][value_stride]
  float* scratch;
  ChunkBuffers chunk;
};

Buffers MakeBuffers(ScratchScope& scope, const AttentionStep& step) {
  const AttentionShape& shape = step.blocks.shape;
  const int tokens = std::min(kBlockSlots, step.seqs.longest_run());
  const int rows = tokens * (shape.group() + 1), value_stride = ValueStride(shape.value_head_dim);
  const auto queries = static_cast<size_t>(tokens) * shape.group();
  Buffers buffers = {
      .blocks = scope.Allocate<KvBlock>(static_cast<size_t>(MostBlocks(step.blocks, step.seqs))),
      .rows = scope.Allocate<const float*>(static_cast<size_t>(rows)),
      .position = scope.Allocate<int32_t>(queries),
      .out = scope.Allocate<float>(queries * static_cast<size_t>(value_stride)),
      .scratch = scope.Allocate<float>(BlockAttentionScratch(rows, shape.head_dim, value_stride)),
      .chunk = {}};
  if (step.blocks.merge != Merge::kNothing) buffers.chunk = MakeChunkBuffers(scope, step.blocks);
  return buffers;
}

void Store(const AttentionStep& step, const TileRows& tile) {
  const AttentionBlocks& blocks = step.blocks;
  const int d = blocks.shape.head_dim, dv = blocks.shape.value_head_dim;
  void* keys = blocks.recent_keys.At(tile.session, tile.sequence, tile.kv_head, tile.block);
  void* values = blocks.recent_values.At(tile.session, tile.sequence, tile.kv_head, tile.block);
  for (int t = 0; t < tile.n_tokens; ++t) {
    const int64_t row = (tile.row + t) * step.rows.stride;
    if (blocks.recent_keys.shared == nullptr) {
      StoreKey(step.rows.k + row + int64_t{tile.kv_head} * d, d, blocks.dtype, keys, tile.slot + t,
               blocks.KeyScale(tile.kv_head));
    }
    StoreValue(step.rows.v + row + int64_t{tile.kv_head} * dv, dv, ValueStride(dv), blocks.dtype,
               values, tile.slot + t);
  }
}

// The blocks that the rows meet; positions count from the begin of their own.
std::span<const KvBlock> ListBlocks(const AttentionBlocks& blocks, const TileRows& tile,
                                    KvBlock* list) {
  const auto at = [&](const BlockPlaces& places, int64_t block) {
    return places.At(tile.session, tile.sequence, tile.kv_head, block);
  };
  size_t n = 0;
  for (int32_t b = 0; b < BlocksOf(tile.n_live); ++b) {
    list[n++] = {.keys = at(blocks.dictionary_keys, b),
                 .values = at(blocks.dictionary_values, b),
                 .bias = blocks.has_bias()
                             ? reinterpret_cast<const float*>(at(blocks.dictionary_bias, b))
                             : nullptr,
                 .live = std::min(kBlockSlots, tile.n_live - b * kBlockSlots),
                 .begin = 0};
  }
  const int64_t first =
      blocks.ring() > 0 ? std::max<int64_t>(0, tile.block + 1 - blocks.ring()) : 0;
  for (int64_t b = first; b <= tile.block; ++b) {
    list[n++] = {.keys = at(blocks.recent_keys, b),
                 .values = at(blocks.recent_values, b),
                 .bias = nullptr,
                 .live = -1,
                 .begin = static_cast<int32_t>((b - tile.block) * kBlockSlots)};
  }
  return {list, n};
}

template <class T>
void WriteOut(const AttentionStep& step, const TileRows& tile, const float* from) {
  const AttentionShape& shape = step.blocks.shape;
  for (int t = 0; t < tile.n_tokens; ++t) {
    for (int g = 0; g < shape.group(); ++g) {
      const int64_t head =
          (tile.row + t) * shape.n_heads + int64_t{tile.kv_head} * shape.group() + g;
      T* to = static_cast<T*>(step.rows.out) + head * shape.value_head_dim;
      for (int c = 0; c < shape.value_head_dim; ++c) to[c] = FromFloat<T>(from[c]);
      from += ValueStride(shape.value_head_dim);
    }
  }
}

void Attend(const AttentionStep& step, const TileRows& tile, const Buffers& buffers) {
  const AttentionBlocks& blocks = step.blocks;
  const int group = blocks.shape.group(), d = blocks.shape.head_dim;
  for (int t = 0; t < tile.n_tokens; ++t) {
    const int64_t row = (tile.row + t) * step.rows.stride;
    for (int g = 0; g < group; ++g) {
      buffers.rows[t * group + g] = step.rows.q + row + (int64_t{tile.kv_head} * group + g) * d;
      buffers.position[t * group + g] = tile.slot + t;
    }
    buffers.rows[tile.n_tokens * group + t] = step.rows.k + row + int64_t{tile.kv_head} * d;
  }
  const bool probe = blocks.probe && tile.n_live > 0;
  AttendBlocksCpu(
      {.dtype = blocks.dtype,
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
       .scratch = buffers.scratch});
  if (step.rows.out_dtype == DType::kBF16) {
    WriteOut<BF16>(step, tile, buffers.out);
  } else {
    WriteOut<float>(step, tile, buffers.out);
  }
}

// Tiles end where a recent block or a span ends, so that all rows of one meet the same blocks as
// they would alone.
template <class After, class Update>
void AttendHead(const AttentionStep& step, int s, int kv_head, const Buffers& buffers,
                const std::function<void(const TileRows&)>& prepare, After&& after,
                Update&& update) {
  const AttentionBlocks& blocks = step.blocks;
  const int64_t start = step.seqs.start_pos[s], end = step.seqs.end_of(s), span = blocks.wave_span;
  for (int64_t position = start; position < end;) {
    const int64_t at = position - blocks.origin(position),
                  element = position - blocks.span_begin(position);
    const int64_t wave = span > 0 ? position / span - start / span : 0;
    int64_t n_tokens = std::min(kBlockSlots - at % kBlockSlots, end - position);
    if (span > 0) n_tokens = std::min(n_tokens, span - element);
    const TileRows tile = {.sequence = s,
                           .kv_head = kv_head,
                           .session = step.seqs.state[s],
                           .row = step.seqs.row_begin[s] + position - start,
                           .element = element,
                           .block = at / kBlockSlots,
                           .slot = static_cast<int>(at % kBlockSlots),
                           .n_tokens = static_cast<int>(n_tokens),
                           .n_live = blocks.LiveAt(s, kv_head, wave)};
    if (prepare) prepare(tile);
    Store(step, tile);
    Attend(step, tile, buffers);
    after(tile);
    position += n_tokens;
    if (span > 0 && element + n_tokens == span) {
      update({.session = tile.session,
              .kv_head = kv_head,
              .chunk = position / span - 1,
              .n_old = tile.n_live,
              .n_next = blocks.LiveAt(s, kv_head, wave + 1)});
    }
  }
}

}  // namespace

void AttendCpu(DeviceContext& context, const AttentionStep& step) {
  AttendTilesCpu(context, step, {}, {});
}

void AttendTilesCpu(DeviceContext& context, const AttentionStep& step,
                    const std::function<void(const TileRows&)>& prepare,
                    const std::function<void(const FullChunk&, int thread)>& update,
                    const std::function<void(const TileRows&, int thread)>& after) {
  ScratchScope scope(context);
  std::vector<Buffers> buffers;
  for (int i = 0; i < context.n_threads(); ++i) buffers.push_back(MakeBuffers(scope, step));
  const int heads = step.blocks.shape.n_kv_heads;
  ParallelFor(context, int64_t{step.seqs.n_seqs()} * heads, [&](int64_t task, int thread) {
    AttendHead(
        step, static_cast<int>(task / heads), static_cast<int>(task % heads), buffers[thread],
        prepare,
        [&](const TileRows& tile) {
          if (after) after(tile, thread);
        },
        [&](const FullChunk& chunk) {
          if (step.blocks.merge != Merge::kNothing) {
            UpdateChunkCpu(step.blocks, chunk, buffers[thread].chunk);
          }
          if (update) update(chunk, thread);
        });
  });
}

}  // namespace ovq
