#include "kernels/mixers/common/attention_tile.h"

#include <algorithm>

namespace ovq {
namespace {

template <class T>
void WriteRows(const AttentionShape& shape, const AttentionRows& rows, int kv_head,
               int64_t first_row, int n_tokens, const float* out, int value_stride) {
  const int64_t out_stride = int64_t{shape.n_heads} * shape.value_head_dim;
  for (int t = 0; t < n_tokens; ++t) {
    for (int g = 0; g < shape.group(); ++g) {
      const int64_t head = int64_t{kv_head} * shape.group() + g;
      T* to =
          static_cast<T*>(rows.out) + (first_row + t) * out_stride + head * shape.value_head_dim;
      for (int c = 0; c < shape.value_head_dim; ++c) to[c] = FromFloat<T>(out[c]);
      out += value_stride;
    }
  }
}

}  // namespace

AttentionTile::AttentionTile(ScratchScope& scope, const AttentionShape& shape, int max_tokens,
                             int64_t max_blocks)
    : shape_(shape), value_stride_(ValueStride(shape.value_head_dim)) {
  const size_t queries = static_cast<size_t>(max_tokens) * shape.group();
  const int rows = max_tokens * (shape.group() + 1);
  blocks_ = scope.Allocate<KvBlock>(static_cast<size_t>(max_blocks));
  rows_ = scope.Allocate<const float*>(static_cast<size_t>(rows));
  position_ = scope.Allocate<int32_t>(queries);
  out_ = scope.Allocate<float>(queries * static_cast<size_t>(value_stride_));
  scratch_ = scope.Allocate<float>(BlockAttentionScratch(rows, shape.head_dim, value_stride_));
}

void AttentionTile::Attend(const AttentionRows& rows, int kv_head, int64_t first_row, int n_tokens,
                           int32_t position, int32_t window, DType dtype, bool probe,
                           float* best_score, int32_t* best_slot) {
  const int group = shape_.group();
  for (int t = 0; t < n_tokens; ++t) {
    const float* q =
        rows.q + (first_row + t) * rows.stride + int64_t{kv_head} * group * shape_.head_dim;
    for (int g = 0; g < group; ++g) {
      rows_[t * group + g] = q + int64_t{g} * shape_.head_dim;
      position_[t * group + g] = position + t;
    }
    rows_[n_tokens * group + t] =
        rows.k + (first_row + t) * rows.stride + int64_t{kv_head} * shape_.head_dim;
  }
  AttendBlocksCpu({.dtype = dtype,
                   .head_dim = shape_.head_dim,
                   .value_stride = value_stride_,
                   .window = window,
                   .blocks = {blocks_, static_cast<size_t>(n_blocks_)},
                   .rows = rows_,
                   .n_queries = n_tokens * group,
                   .query_position = position_,
                   .out = out_,
                   .n_probes = probe ? n_tokens : 0,
                   .best_score = best_score,
                   .best_slot = best_slot,
                   .scratch = scratch_});
  WriteOutput(rows, kv_head, first_row, n_tokens);
}

void AttentionTile::WriteOutput(const AttentionRows& rows, int kv_head, int64_t first_row,
                                int n_tokens) const {
  if (rows.out_dtype == DType::kBF16) {
    WriteRows<BF16>(shape_, rows, kv_head, first_row, n_tokens, out_, value_stride_);
  } else {
    WriteRows<float>(shape_, rows, kv_head, first_row, n_tokens, out_, value_stride_);
  }
}

void StoreTokens(const AttentionShape& shape, const AttentionRows& rows, int kv_head,
                 int64_t first_row, int n_tokens, DType dtype, void* keys, void* values, int slot) {
  for (int t = 0; t < n_tokens; ++t) {
    const int64_t row = (first_row + t) * rows.stride;
    StoreKey(rows.k + row + int64_t{kv_head} * shape.head_dim, shape.head_dim, dtype, keys,
             slot + t);
    StoreValue(rows.v + row + int64_t{kv_head} * shape.value_head_dim, shape.value_head_dim,
               ValueStride(shape.value_head_dim), dtype, values, slot + t);
  }
}

std::vector<AttentionTile> MakeTiles(ScratchScope& scope, const DeviceContext& context,
                                     const AttentionShape& shape, int max_tokens,
                                     int64_t max_blocks) {
  std::vector<AttentionTile> tiles;
  tiles.reserve(static_cast<size_t>(context.n_threads()));
  for (int i = 0; i < context.n_threads(); ++i) {
    tiles.emplace_back(scope, shape, max_tokens, max_blocks);
  }
  return tiles;
}

}  // namespace ovq
