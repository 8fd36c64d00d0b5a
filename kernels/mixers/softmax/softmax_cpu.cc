// Softmax attention on the CPU. Of one head: q [n_rows, head_dim] (times beta), K [t + 1,
// head_dim], V [t + 1, value_head_dim], of which the last `window` rows count, or all:
//   o_t = softmax(q_t K^T) V
#include <algorithm>

#include "kernels/common/parallel.h"
#include "kernels/mixers/common/attention_tile.h"
#include "kernels/mixers/softmax/softmax.h"

namespace ovq {
namespace {

// Tiles end at multiples of 64, so that all rows of one meet the same blocks as they would alone.
void AttendHead(const SoftmaxArgs& args, int s, int kv_head, AttentionTile& tile) {
  const AttentionShape& shape = args.shape;
  std::byte* session = args.seqs.state[s];
  int64_t row = args.seqs.row_begin[s];
  const int64_t end_row = args.seqs.row_begin[s + 1];
  int64_t position = args.seqs.start_pos[s];
  while (row < end_row) {
    const int64_t block = position / kBlockSlots;
    const int slot = static_cast<int>(position % kBlockSlots);
    const int n_tokens = static_cast<int>(std::min<int64_t>(kBlockSlots - slot, end_row - row));
    StoreTokens(shape, args.rows, kv_head, row, n_tokens, args.state.dtype(),
                args.state.keys(session, args.where, block, kv_head),
                args.state.values(session, args.where, block, kv_head), slot);
    tile.ClearBlocks();
    for (int64_t b = args.state.first_block(block); b <= block; ++b) {
      tile.AddBlock({.keys = args.state.keys(session, args.where, b, kv_head),
                     .values = args.state.values(session, args.where, b, kv_head),
                     .bias = nullptr,
                     .live = -1,
                     .begin = static_cast<int32_t>((b - block) * kBlockSlots)});
    }
    tile.Attend(args.rows, kv_head, row, n_tokens, slot, args.window, args.state.dtype());
    row += n_tokens;
    position += n_tokens;
  }
}

}  // namespace

void SoftmaxAttentionCpu(DeviceContext& context, const SoftmaxArgs& args) {
  ScratchScope scope(context);
  const int max_tokens = std::min(kTileTokens, args.seqs.longest_run());
  const int64_t most_blocks =
      args.window > 0 ? args.state.ring_blocks() : BlocksOf(args.seqs.end_bound);
  std::vector<AttentionTile> tiles = MakeTiles(scope, context, args.shape, max_tokens, most_blocks);
  const int heads = args.shape.n_kv_heads;
  ParallelFor(context, int64_t{args.seqs.n_seqs()} * heads, [&](int64_t task, int thread) {
    AttendHead(args, static_cast<int>(task / heads), static_cast<int>(task % heads), tiles[thread]);
  });
}

}  // namespace ovq
