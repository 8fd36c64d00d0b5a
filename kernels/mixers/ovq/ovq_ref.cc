#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "kernels/mixers/common/attention_ref.h"
#include "kernels/mixers/common/stochastic_rounding.h"
#include "kernels/mixers/ovq/assign.h"
#include "kernels/mixers/ovq/ovq.h"

namespace ovq {
namespace {

// Everything the reference needs of one head while one token passes.
struct Token {
  const OvqArgs& args;
  OvqHead head;
  int kv_head;
  int64_t row;
  int64_t chunk;
  int offset;      // in the chunk
  int64_t n_live;  // centroids at the chunk's start
  int32_t slot_cap;
};

std::vector<SlotRef> VisibleSlots(const Token& token) {
  std::vector<SlotRef> slots;
  for (int64_t j = 0; j < token.n_live; ++j) {
    const int64_t block = j / kBlockSlots;
    const int slot = static_cast<int>(j % kBlockSlots);
    slots.push_back({token.head.keys(block), token.head.values(block), slot,
                     std::log(static_cast<double>(token.head.counts(block)[slot]))});
  }
  for (int i = 0; i <= token.offset; ++i) {
    slots.push_back({token.head.pending_keys_block(i / kBlockSlots),
                     token.head.pending_values_block(i / kBlockSlots), i % kBlockSlots, 0});
  }
  return slots;
}

void FindBestCentroid(const Token& token) {
  const OvqConfig& config = token.args.config;
  const float* key = token.args.rows.k + token.row * token.args.rows.stride +
                     int64_t{token.kv_head} * config.shape.head_dim;
  double best = -std::numeric_limits<double>::infinity();
  int32_t best_slot = 0;
  for (int64_t j = 0; j < token.n_live; ++j) {
    const double score = DotSlotRef(key, token.head.keys(j / kBlockSlots), config.dtype,
                                    config.shape.head_dim, static_cast<int>(j % kBlockSlots));
    if (score > best) {
      best = score;
      best_slot = static_cast<int32_t>(j);
    }
  }
  token.head.best_score[token.offset] = static_cast<float>(best);
  token.head.best_slot[token.offset] = best_slot;
}

// row += sum over members (member - row) / count, in double, for one centroid. data[channel *
// stride] is the centroid's row.
template <class T>
void MergeRow(T* data, size_t stride, int n, const std::vector<std::vector<float>>& members,
              double count, const RoundingKey& key) {
  std::vector<float> merged(static_cast<size_t>(n));
  for (int c = 0; c < n; ++c) {
    const double old = ToFloat(data[static_cast<size_t>(c) * stride]);
    double sum = 0;
    for (const std::vector<float>& member : members) sum += member[c] - old;
    merged[c] = static_cast<float>(old + sum / count);
  }
  RoundRow(merged.data(), n, key, data, stride);
}

void MergeCentroid(const Token& token, int32_t centroid, const std::vector<int>& members) {
  const OvqConfig& config = token.args.config;
  const int d = config.shape.head_dim, dv = config.shape.value_head_dim;
  const int64_t block = centroid / kBlockSlots;
  const int slot = centroid % kBlockSlots;
  std::vector<std::vector<float>> keys, values;
  for (int i : members) {
    keys.emplace_back(d);
    values.emplace_back(dv);
    LoadKey(token.head.pending_keys_block(i / kBlockSlots), config.dtype, d, i % kBlockSlots,
            keys.back().data());
    LoadValue(token.head.pending_values_block(i / kBlockSlots), config.dtype, dv, ValueStride(dv),
              i % kBlockSlots, values.back().data());
  }
  const double count = token.head.counts(block)[slot];
  RoundingKey key = {.layer = static_cast<uint32_t>(config.layer),
                     .kv_head = static_cast<uint32_t>(token.kv_head),
                     .row = static_cast<uint32_t>(centroid),
                     .is_value = false,
                     .chunk = token.chunk};
  const auto merge = [&]<class T>(T) {
    MergeRow(reinterpret_cast<T*>(token.head.keys(block)) + slot, kBlockSlots, d, keys, count, key);
    key.is_value = true;
    MergeRow(reinterpret_cast<T*>(token.head.values(block)) + slot * ValueStride(dv), 1, dv, values,
             count, key);
  };
  config.dtype == DType::kBF16 ? merge(BF16{}) : merge(float{});
}

void UpdateDictionary(const Token& token) {
  const OvqArgs& args = token.args;
  const int chunk_len = args.config.chunk_len;
  const int64_t n_next = CentroidsAt((token.chunk + 1) * chunk_len, token.slot_cap);
  std::vector<int32_t> order(chunk_len), assignment(chunk_len);
  if (token.n_live == 0) {
    std::vector<float> first(static_cast<size_t>(args.config.shape.head_dim));
    LoadKey(token.head.pending_keys, args.config.dtype, args.config.shape.head_dim, 0,
            first.data());
    std::vector<float> score(chunk_len);
    for (int i = 0; i < chunk_len; ++i) {
      score[i] = static_cast<float>(
          DotSlotRef(first.data(), token.head.pending_keys_block(i / kBlockSlots),
                     args.config.dtype, args.config.shape.head_dim, i % kBlockSlots));
    }
    AssignFirstChunk(score, n_next, order, assignment);
  } else {
    const size_t n = static_cast<size_t>(chunk_len);
    AssignChunk({token.head.best_score, n}, {token.head.best_slot, n}, token.n_live,
                n_next - token.n_live, order, assignment);
  }
  for (int i = 0; i < chunk_len; ++i) {
    uint32_t& count = token.head.counts(assignment[i] / kBlockSlots)[assignment[i] % kBlockSlots];
    if (count < std::numeric_limits<uint32_t>::max()) ++count;
  }
  for (int32_t centroid = 0; centroid < n_next; ++centroid) {
    std::vector<int> members;
    for (int i = 0; i < chunk_len; ++i) {
      if (assignment[i] == centroid) members.push_back(i);
    }
    if (members.empty()) continue;
    const int64_t block = centroid / kBlockSlots;
    const int slot = centroid % kBlockSlots;
    token.head.log_counts(block)[slot] =
        std::log(static_cast<float>(token.head.counts(block)[slot]));
    MergeCentroid(token, centroid, members);
  }
}

void PassToken(const Token& token) {
  const OvqConfig& config = token.args.config;
  const AttentionRows& rows = token.args.rows;
  const int d = config.shape.head_dim, dv = config.shape.value_head_dim;
  const int block = token.offset / kBlockSlots, slot = token.offset % kBlockSlots;
  StoreKey(rows.k + token.row * rows.stride + int64_t{token.kv_head} * d, d, config.dtype,
           token.head.pending_keys_block(block), slot);
  StoreValue(rows.v + token.row * rows.stride + int64_t{token.kv_head} * dv, dv, ValueStride(dv),
             config.dtype, token.head.pending_values_block(block), slot);
  const std::vector<SlotRef> slots = VisibleSlots(token);
  std::vector<float> out(static_cast<size_t>(dv));
  for (int g = 0; g < config.shape.group(); ++g) {
    const int query_head = token.kv_head * config.shape.group() + g;
    AttendSlotsRef(rows.q + token.row * rows.stride + int64_t{query_head} * d, slots, config.dtype,
                   d, dv, out.data());
    WriteOutputRef(config.shape, rows, token.row, query_head, out.data());
  }
  if (token.n_live > 0) FindBestCentroid(token);
  if (token.offset + 1 == config.chunk_len) UpdateDictionary(token);
}

}  // namespace

void OvqAttentionRef(DeviceContext&, const OvqArgs& args) {
  for (int s = 0; s < args.seqs.n_seqs(); ++s) {
    for (int32_t row = args.seqs.row_begin[s]; row < args.seqs.row_begin[s + 1]; ++row) {
      const int64_t position = args.seqs.start_pos[s] + (row - args.seqs.row_begin[s]);
      const int64_t chunk = position / args.config.chunk_len;
      for (int h = 0; h < args.config.shape.n_kv_heads; ++h) {
        PassToken({.args = args,
                   .head = args.state.Head(args.seqs.state[s], args.where, h),
                   .kv_head = h,
                   .row = row,
                   .chunk = chunk,
                   .offset = static_cast<int>(position % args.config.chunk_len),
                   .n_live = CentroidsAt(chunk * args.config.chunk_len, args.seqs.slot_cap[s]),
                   .slot_cap = args.seqs.slot_cap[s]});
      }
    }
  }
}

}  // namespace ovq
