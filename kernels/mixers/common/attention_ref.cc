#include "kernels/mixers/common/attention_ref.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <vector>

#include "kernels/common/random.h"
#include "kernels/mixers/common/block_attention.h"

namespace ovq {
namespace {

// One channel of a dictionary slot.
struct ChannelRef {
  const TokenRef& token;
  int64_t slot;
  int channel;
  bool is_value;
};

// A mean to the state's dtype. bfloat16 rounds up with the probability of the distance: 16 random
// bits, drawn for (layer, head, slot, channel, chunk), are added below the bits that stay.
void StoreMean(const AttentionBlocks& blocks, const ChannelRef& at, float mean, void* to) {
  if (blocks.dtype == DType::kF32) {
    *static_cast<float*>(to) = mean;
    return;
  }
  const auto chunk = static_cast<uint64_t>(at.token.position / blocks.wave_span);
  const auto words =
      Philox4x32({static_cast<uint32_t>(at.slot), static_cast<uint32_t>(at.channel / 8),
                  static_cast<uint32_t>(chunk), static_cast<uint32_t>(chunk >> 32)},
                 {static_cast<uint32_t>(2 * blocks.layer + (at.is_value ? 1 : 0)),
                  static_cast<uint32_t>(at.token.kv_head)});
  const int draw = at.channel % 8;
  const uint32_t random = words[draw / 2] >> (draw % 2 * 16) & 0xffff;
  const uint64_t bits = uint64_t{std::bit_cast<uint32_t>(mean)} + random;
  *static_cast<uint16_t*>(to) = static_cast<uint16_t>(bits >> 16);
}

double MeanAt(const AttentionBlocks& blocks, const void* mean) {
  return blocks.dtype == DType::kF32
             ? *static_cast<const float*>(mean)
             : std::bit_cast<float>(uint32_t{*static_cast<const uint16_t*>(mean)} << 16);
}

// A slot's key or value and what merges into it.
struct MergeRef {
  const std::vector<std::vector<float>>& members;  // each all channels
  bool from_mean;  // what is added is a member's distance from the mean
  bool normalizes;
  double count;
};

// mean += sum (member - mean) / count. place(c): of channel c.
template <class Fn>
void MergeRowRef(const AttentionBlocks& blocks, ChannelRef at, int n_channels,
                 const MergeRef& merge, Fn&& place) {
  std::vector<double> row;
  double squares = 0;
  for (int c = 0; c < n_channels; ++c) {
    const double old = MeanAt(blocks, place(c));
    double sum = 0;
    for (const auto& member : merge.members) sum += member[c] - (merge.from_mean ? old : 0);
    row.push_back(old + sum / merge.count);
    squares += row.back() * row.back();
  }
  const double norm = merge.normalizes ? std::max(std::sqrt(squares), 1e-12) : 1;
  for (at.channel = 0; at.channel < n_channels; ++at.channel) {
    StoreMean(blocks, at, static_cast<float>(row[at.channel] / norm), place(at.channel));
  }
}

}  // namespace

double DotSlotRef(const float* q, const void* keys, DType dtype, int head_dim, int slot) {
  std::vector<float> key(static_cast<size_t>(head_dim));
  LoadKey(keys, dtype, head_dim, slot, key.data());
  double sum = 0;
  for (int i = 0; i < head_dim; ++i) sum += static_cast<double>(q[i]) * key[i];
  return sum;
}

void AttendSlotsRef(const float* q, const std::vector<SlotRef>& slots, DType dtype, int head_dim,
                    int value_head_dim, float* out) {
  std::vector<double> scores;
  for (const SlotRef& slot : slots) {
    scores.push_back(DotSlotRef(q, slot.keys, dtype, head_dim, slot.slot) + slot.bias);
  }
  const double highest = *std::max_element(scores.begin(), scores.end());
  std::vector<double> sum(static_cast<size_t>(value_head_dim));
  std::vector<float> value(static_cast<size_t>(value_head_dim));
  double weight_sum = 0;
  for (size_t i = 0; i < slots.size(); ++i) {
    const double weight = std::exp(scores[i] - highest);
    weight_sum += weight;
    LoadValue(slots[i].values, dtype, value_head_dim, ValueStride(value_head_dim), slots[i].slot,
              value.data());
    for (int c = 0; c < value_head_dim; ++c) sum[c] += weight * value[c];
  }
  for (int c = 0; c < value_head_dim; ++c) out[c] = static_cast<float>(sum[c] / weight_sum);
}

const float* KeyRef(const AttentionStep& step, const TokenRef& token) {
  return step.rows.k + token.row * step.rows.stride +
         int64_t{token.kv_head} * step.blocks.shape.head_dim;
}

SlotRef DictionarySlotRef(const AttentionStep& step, const TokenRef& token, int64_t j) {
  const AttentionBlocks& blocks = step.blocks;
  const int64_t block = j / kBlockSlots, slot = j % kBlockSlots;
  const uint32_t count = blocks.counts.At<uint32_t>(token.session, token.kv_head, block)[slot];
  return {blocks.dictionary_keys.At(token.session, token.sequence, token.kv_head, block),
          blocks.dictionary_values.At(token.session, token.sequence, token.kv_head, block),
          static_cast<int>(slot), blocks.has_bias() ? std::log(static_cast<double>(count)) : 0};
}

SlotRef RecentSlotRef(const AttentionStep& step, const TokenRef& token, int64_t i) {
  const AttentionBlocks& blocks = step.blocks;
  return {blocks.recent_keys.At(token.session, token.sequence, token.kv_head, i / kBlockSlots),
          blocks.recent_values.At(token.session, token.sequence, token.kv_head, i / kBlockSlots),
          static_cast<int>(i % kBlockSlots), 0};
}

void StoreTokenRef(const AttentionStep& step, const TokenRef& token, const float* key, int64_t i) {
  const AttentionBlocks& blocks = step.blocks;
  const int d = blocks.shape.head_dim, dv = blocks.shape.value_head_dim;
  const int64_t block = i / kBlockSlots;
  const int slot = static_cast<int>(i % kBlockSlots);
  StoreKey(key, d, blocks.dtype,
           blocks.recent_keys.At(token.session, token.sequence, token.kv_head, block), slot);
  StoreValue(step.rows.v + token.row * step.rows.stride + int64_t{token.kv_head} * dv, dv,
             ValueStride(dv), blocks.dtype,
             blocks.recent_values.At(token.session, token.sequence, token.kv_head, block), slot);
}

void AttendTokenRef(const AttentionStep& step, const TokenRef& token,
                    const std::vector<SlotRef>& slots) {
  const AttentionShape& shape = step.blocks.shape;
  std::vector<float> out(static_cast<size_t>(shape.value_head_dim));
  for (int g = 0; g < shape.group(); ++g) {
    const int64_t head = int64_t{token.kv_head} * shape.group() + g;
    AttendSlotsRef(step.rows.q + token.row * step.rows.stride + head * shape.head_dim, slots,
                   step.blocks.dtype, shape.head_dim, shape.value_head_dim, out.data());
    const int64_t begin = (token.row * shape.n_heads + head) * shape.value_head_dim;
    for (int c = 0; c < shape.value_head_dim; ++c) {
      if (step.rows.out_dtype == DType::kBF16) {
        static_cast<BF16*>(step.rows.out)[begin + c] = RoundToBF16(out[c]);
      } else {
        static_cast<float*>(step.rows.out)[begin + c] = out[c];
      }
    }
  }
}

uint32_t MergeSlotRef(const AttentionStep& step, const TokenRef& token, int64_t j,
                      const std::vector<int>& members, const MergeRuleRef& rule) {
  const AttentionBlocks& blocks = step.blocks;
  const int d = blocks.shape.head_dim, dv = blocks.shape.value_head_dim, stride = ValueStride(dv);
  const int64_t block = j / kBlockSlots, slot = j % kBlockSlots;
  uint32_t& count = blocks.counts.At<uint32_t>(token.session, token.kv_head, block)[slot];
  count = static_cast<uint32_t>(
      std::min<uint64_t>(uint64_t{count} + members.size(), std::numeric_limits<uint32_t>::max()));
  std::vector<std::vector<float>> keys, values;
  for (int i : members) {
    const SlotRef from = RecentSlotRef(step, token, i);
    LoadKey(from.keys, blocks.dtype, d, from.slot, keys.emplace_back(d).data());
    LoadValue(from.values, blocks.dtype, dv, stride, from.slot, values.emplace_back(dv).data());
    for (int c = 0; rule.predictions != nullptr && c < dv; ++c) {
      values.back()[c] -= (*rule.predictions)[i][c];
    }
  }
  const size_t element = DTypeBytes(blocks.dtype);
  const auto at = [&](const BlockPlaces& places, int64_t i) {
    return places.At(token.session, token.sequence, token.kv_head, block) +
           static_cast<size_t>(i) * element;
  };
  if (blocks.dictionary_keys.shared == nullptr) {
    MergeRowRef(blocks, {token, j, 0, /*is_value=*/false}, d,
                {keys, /*from_mean=*/true, rule.normalizes_keys, static_cast<double>(count)},
                [&](int c) { return at(blocks.dictionary_keys, c * kBlockSlots + slot); });
  }
  MergeRowRef(
      blocks, {token, j, 0, /*is_value=*/true}, dv,
      {values, rule.predictions == nullptr, rule.normalizes_values, static_cast<double>(count)},
      [&](int c) { return at(blocks.dictionary_values, slot * stride + c); });
  return count;
}

}  // namespace ovq
