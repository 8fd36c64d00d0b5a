// The ground truth of OVQ attention, from the paper's equations in plain loops and double
// precision. It shares the layout of the state with the other devices and nothing that decides or
// computes:
//   n(t) = floor(t N / (t + N))                                         equation 17
//   o = softmax([beta q Dk^T + ln c, beta q K^T]) [Dv; V]               equation 15
//   Dk_j += sum (k_i - Dk_j) / c_j over the keys assigned to j          equations 18, 19
#include <bit>
#include <cmath>
#include <limits>
#include <vector>

#include "kernels/common/random.h"
#include "kernels/mixers/common/attention_ref.h"
#include "kernels/mixers/ovq/ovq.h"

namespace ovq {
namespace {

int64_t CentroidsAfter(int64_t t, int64_t n) {
  const auto product = static_cast<unsigned __int128>(t) * static_cast<unsigned __int128>(n);
  return t == 0 ? 0 : static_cast<int64_t>(product / static_cast<unsigned __int128>(t + n));
}

// Everything the reference needs of one head while one token passes.
struct Token {
  const OvqArgs& args;
  OvqHead head;
  int kv_head;
  int64_t row;
  int64_t chunk;
  int offset;      // in the chunk
  int64_t n_live;  // centroids at the chunk's begin
  int64_t n_next;  // at its end
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

// Pending key or value i of the chunk as float32.
std::vector<float> PendingKey(const Token& token, int i) {
  const OvqConfig& config = token.args.config;
  std::vector<float> key(static_cast<size_t>(config.shape.head_dim));
  LoadKey(token.head.pending_keys_block(i / kBlockSlots), config.dtype, config.shape.head_dim,
          i % kBlockSlots, key.data());
  return key;
}
std::vector<float> PendingValue(const Token& token, int i) {
  const OvqConfig& config = token.args.config;
  const int dv = config.shape.value_head_dim;
  std::vector<float> value(static_cast<size_t>(dv));
  LoadValue(token.head.pending_values_block(i / kBlockSlots), config.dtype, dv, ValueStride(dv),
            i % kBlockSlots, value.data());
  return value;
}

// How near each key of the chunk is to what it could merge into: its best centroid, or key 0 in the
// first chunk. Key 0 itself then never becomes another centroid.
std::vector<float> Nearness(const Token& token) {
  const OvqConfig& config = token.args.config;
  std::vector<float> nearness(token.head.best_score, token.head.best_score + config.chunk_len);
  if (token.n_live > 0) return nearness;
  const std::vector<float> first = PendingKey(token, 0);
  nearness[0] = std::numeric_limits<float>::infinity();
  for (int i = 1; i < config.chunk_len; ++i) {
    nearness[i] =
        static_cast<float>(DotSlotRef(first.data(), token.head.pending_keys_block(i / kBlockSlots),
                                      config.dtype, config.shape.head_dim, i % kBlockSlots));
  }
  return nearness;
}

// The centroid of every key: the farthest keys, one after another, become new ones, ties to the
// lower index; the others go to their best old one.
std::vector<int64_t> Assign(const Token& token) {
  const int chunk_len = token.args.config.chunk_len;
  const std::vector<float> nearness = Nearness(token);
  std::vector<int64_t> assignment(static_cast<size_t>(chunk_len), -1);
  for (int64_t next = token.n_live == 0 ? 1 : token.n_live; next < token.n_next; ++next) {
    int farthest = -1;
    for (int i = 0; i < chunk_len; ++i) {
      if (assignment[i] >= 0) continue;
      if (farthest < 0 || nearness[i] < nearness[farthest]) farthest = i;
    }
    assignment[farthest] = next;
  }
  for (int i = 0; i < chunk_len; ++i) {
    if (assignment[i] < 0) assignment[i] = token.n_live == 0 ? 0 : token.head.best_slot[i];
  }
  return assignment;
}

// A mean to the state's dtype. bfloat16 rounds up with the probability of the distance: 16 random
// bits, drawn for (layer, head, centroid, channel, chunk), are added below the bits that stay.
void StoreMean(const Token& token, int64_t centroid, int channel, bool is_value, float mean,
               void* to) {
  if (token.args.config.dtype == DType::kF32) {
    *static_cast<float*>(to) = mean;
    return;
  }
  const auto chunk = static_cast<uint64_t>(token.chunk);
  const auto words =
      Philox4x32({static_cast<uint32_t>(centroid), static_cast<uint32_t>(channel / 8),
                  static_cast<uint32_t>(chunk), static_cast<uint32_t>(chunk >> 32)},
                 {static_cast<uint32_t>(2 * token.args.config.layer + (is_value ? 1 : 0)),
                  static_cast<uint32_t>(token.kv_head)});
  const int draw = channel % 8;
  const uint32_t random = words[draw / 2] >> (draw % 2 * 16) & 0xffff;
  const uint64_t bits = uint64_t{std::bit_cast<uint32_t>(mean)} + random;
  *static_cast<uint16_t*>(to) = static_cast<uint16_t>(bits >> 16);
}

double LoadMean(const Token& token, const void* from) {
  return token.args.config.dtype == DType::kF32
             ? *static_cast<const float*>(from)
             : std::bit_cast<float>(uint32_t{*static_cast<const uint16_t*>(from)} << 16);
}

// One channel of a centroid: mean += sum (member - mean) / count.
void MergeChannel(const Token& token, int64_t centroid, int channel, bool is_value,
                  const std::vector<std::vector<float>>& members, std::byte* mean) {
  const double old = LoadMean(token, mean);
  double sum = 0;
  for (const std::vector<float>& member : members) sum += member[channel] - old;
  const double count = token.head.counts(centroid / kBlockSlots)[centroid % kBlockSlots];
  StoreMean(token, centroid, channel, is_value, static_cast<float>(old + sum / count), mean);
}

void MergeCentroid(const Token& token, int64_t centroid, const std::vector<int>& members) {
  const AttentionShape& shape = token.args.config.shape;
  const int64_t block = centroid / kBlockSlots, slot = centroid % kBlockSlots;
  const size_t element = DTypeBytes(token.args.config.dtype);
  uint32_t& count = token.head.counts(block)[slot];
  count = static_cast<uint32_t>(
      std::min<uint64_t>(uint64_t{count} + members.size(), std::numeric_limits<uint32_t>::max()));
  token.head.log_counts(block)[slot] = static_cast<float>(std::log(static_cast<double>(count)));
  std::vector<std::vector<float>> keys, values;
  for (int i : members) {
    keys.push_back(PendingKey(token, i));
    values.push_back(PendingValue(token, i));
  }
  for (int c = 0; c < shape.head_dim; ++c) {
    const size_t at = static_cast<size_t>(c * kBlockSlots + slot) * element;
    MergeChannel(token, centroid, c, /*is_value=*/false, keys, token.head.keys(block) + at);
  }
  for (int c = 0; c < shape.value_head_dim; ++c) {
    const size_t at = static_cast<size_t>(slot * ValueStride(shape.value_head_dim) + c) * element;
    MergeChannel(token, centroid, c, /*is_value=*/true, values, token.head.values(block) + at);
  }
}

void UpdateDictionary(const Token& token) {
  const std::vector<int64_t> assignment = Assign(token);
  for (int64_t centroid = 0; centroid < token.n_next; ++centroid) {
    std::vector<int> members;
    for (int i = 0; i < token.args.config.chunk_len; ++i) {
      if (assignment[i] == centroid) members.push_back(i);
    }
    if (!members.empty()) MergeCentroid(token, centroid, members);
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
  AttendHeadsRef(config.shape, rows, token.row, token.kv_head, VisibleSlots(token), config.dtype);
  if (token.n_live > 0) FindBestCentroid(token);
  if (token.offset + 1 == config.chunk_len) UpdateDictionary(token);
}

}  // namespace

void OvqAttentionRef(DeviceContext&, const OvqArgs& args) {
  const int64_t chunk_len = args.config.chunk_len;
  ForEachTokenRef(args.seqs, args.config.shape.n_kv_heads, [&](const TokenRef& at) {
    const int64_t chunk = at.position / chunk_len, cap = args.seqs.slot_cap[at.sequence];
    PassToken({.args = args,
               .head = args.state.Head(at.session, args.where, at.kv_head),
               .kv_head = at.kv_head,
               .row = at.row,
               .chunk = chunk,
               .offset = static_cast<int>(at.position % chunk_len),
               .n_live = CentroidsAfter(chunk * chunk_len, cap),
               .n_next = CentroidsAfter((chunk + 1) * chunk_len, cap)});
  });
}

}  // namespace ovq
