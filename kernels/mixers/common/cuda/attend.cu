#include "kernels/mixers/common/cuda/attend.h"

#include <algorithm>
#include <limits>

#include "kernels/common/cuda/cuda_device.h"
#include "kernels/mixers/common/cuda/attend_launch.h"
#include "kernels/mixers/common/cuda/attend_tile.cuh"

namespace ovq::cuda {
namespace {

constexpr int kMaxTensorCoreDim = 256;
constexpr int kPrefillWarps = 4;
constexpr size_t kMaxPartialBytes = size_t{256} << 20;

// Every sequence has one row: the host's positions are not to be looked at, since the launches may
// be replayed at other ones.
bool OneRowEach(const StepSeqs& seqs) {
  for (int s = 0; s < seqs.n_seqs(); ++s) {
    if (seqs.row_begin[s + 1] - seqs.row_begin[s] != 1) return false;
  }
  return true;
}

// Sequences that have min_tokens to max_tokens rows in a wave.
struct WaveBounds {
  int64_t sequences = 0;
  int32_t tokens = 0;         // of one sequence, at most
  int32_t recent_blocks = 0;  // that the tokens of one sequence lie in, at most
};

WaveBounds BoundsOf(const AttentionBlocks& blocks, const StepSeqs& seqs, int wave,
                    int32_t min_tokens, int32_t max_tokens) {
  WaveBounds bounds;
  if (OneRowEach(seqs)) {
    if (wave == 0 && min_tokens <= 1 && max_tokens >= 1) bounds = {seqs.n_seqs(), 1, 1};
    return bounds;
  }
  for (int s = 0; s < seqs.n_seqs(); ++s) {
    const Piece piece =
        PieceOf(seqs.start_pos[s], seqs.row_begin[s], seqs.row_begin[s + 1] - seqs.row_begin[s],
                blocks.wave_span, wave);
    const int64_t tokens = piece.end - piece.begin;
    if (tokens < std::max(min_tokens, 1) || tokens > max_tokens) continue;
    const int64_t origin = blocks.recent_from_span ? piece.span_begin : 0;
    const int64_t touched = (piece.end - 1 - origin) / kBlockSlots -
                            (piece.begin - origin) / kBlockSlots + 1;
    ++bounds.sequences;
    bounds.tokens = std::max(bounds.tokens, static_cast<int32_t>(tokens));
    bounds.recent_blocks = std::max(bounds.recent_blocks, static_cast<int32_t>(touched));
  }
  return bounds;
}

// The most segments that a row of this step meets.
int64_t MostSegments(const AttentionBlocks& blocks, const StepSeqs& seqs) {
  int64_t met = 0;
  switch (blocks.live) {
    case AttentionBlocks::Live::kNone:
      break;
    case AttentionBlocks::Live::kFixed:
      met = BlocksFor(blocks.fixed_live);
      break;
    case AttentionBlocks::Live::kCentroids:
      met = BlocksFor(CentroidsAt(seqs.end_bound, seqs.centroid_bound));
      break;
  }
  const int64_t tokens = blocks.recent_from_span
                             ? std::min<int64_t>(seqs.end_bound, blocks.wave_span)
                             : seqs.end_bound;
  const int64_t ring = std::max(blocks.recent_keys.ring, blocks.recent_values.ring);
  met += ring > 0 ? std::min(ring, BlocksFor(tokens)) : BlocksFor(tokens);
  return std::max<int64_t>(1, (met + kSegmentBlocks - 1) / kSegmentBlocks);
}

// The kernels for pieces of few and of many tokens.
struct Choice {
  bool tensor_cores;
  int small_rows, large_rows;  // of a tile
  int32_t small_tokens;        // the longest piece for the first
};

Choice Choose(const DeviceContext& context, const AttendArgs& args, size_t max_shared) {
  static_cast<void>(context);
  const AttentionShape& shape = args.blocks.shape;
  const int d = shape.head_dim, stride = args.value_stride, per_token = args.rows_per_token();
  Choice choice = {};
  choice.tensor_cores = args.blocks.dtype == DType::kBF16 &&
                        args.blocks.compute_dtype == DType::kBF16 && d % kRowTileRows == 0 &&
                        d <= kMaxTensorCoreDim && stride <= kMaxTensorCoreDim;
  if (choice.tensor_cores) {
    int warps = kPrefillWarps;
    while (warps > 1 && AttendPrefillShared(d, stride, warps) > max_shared) warps /= 2;
    choice.small_rows = kRowTileRows;
    choice.large_rows = kRowTileRows * warps;
    const bool fits = AttendDecodeShared(d, stride) <= max_shared;
    choice.small_tokens = fits ? std::max(1, choice.small_rows / per_token) : 0;
  } else {
    choice.small_rows = 4;
    choice.large_rows = AttendFmaShared(d, stride, 16) <= max_shared ? 16 : 4;
    choice.small_tokens = choice.small_rows / per_token;
  }
  return choice;
}

}  // namespace
}  // namespace ovq::cuda
