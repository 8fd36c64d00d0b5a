#include "tests/reference/mixers/attention_ref.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <vector>

#include "kernels/common/random.h"
#include "kernels/mixers/common/block_attention.h"
#include "tests/reference/reference_of.h"

namespace ovq::kernels {
namespace {

// 16 random bits, drawn for (layer, head, row, channel, chunk).
uint32_t RandomBits(const MeanKeyRef& key, size_t channel) {
  const auto chunk = static_cast<uint64_t>(key.chunk);
  const auto words = Philox4x32({key.row, static_cast<uint32_t>(channel / 8),
                                 static_cast<uint32_t>(chunk), static_cast<uint32_t>(chunk >> 32)},
                                {static_cast<uint32_t>(2 * key.layer + (key.is_value ? 1 : 0)),
                                 static_cast<uint32_t>(key.kv_head)});
  const size_t draw = channel % 8;
  return words[draw / 2] >> (draw % 2 * 16) & 0xffff;
}

// Exponents of the smallest power of two with which the largest channel fits in [-127, 127].
constexpr int kZeroRow = -127, kBrokenRow = 128;
int ExponentRef(const std::vector<double>& row) {
  double largest = 0;
  for (double x : row) {
    if (!std::isfinite(x)) return kBrokenRow;
    largest = std::max(largest, std::abs(x));
  }
  int exponent = kZeroRow;
  if (largest < 0x1p-120) return exponent;
  while (std::ldexp(127.0, exponent) < largest) ++exponent;
  return exponent;
}

// The merge of members into a slot's key or value.
struct MergeRef {
  const std::vector<std::vector<float>>& members;  // [members][channels]
  bool from_mean;  // adds the members' distances from the mean, not the members
  bool normalizes;
  double count;
};

// Returns mean + sum_i (member_i - mean) / count.
std::vector<double> MergedRef(const std::vector<float>& mean, const MergeRef& merge) {
  std::vector<double> row;
  double squares = 0;
  for (size_t c = 0; c < mean.size(); ++c) {
    double sum = 0;
    for (const auto& member : merge.members) sum += member[c] - (merge.from_mean ? mean[c] : 0.0);
    row.push_back(mean[c] + sum / merge.count);
    squares += row.back() * row.back();
  }
  const double norm = merge.normalizes ? std::max(std::sqrt(squares), 1e-12) : 1;
  for (double& x : row) x /= norm;
  return row;
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

void StoreMeanRef(const std::vector<double>& mean, const MeanKeyRef& key, DType dtype, void* block,
                  int channels, int slot) {
  const auto n_channels = static_cast<size_t>(channels);
  const int exponent = ExponentRef(mean);
  for (size_t c = 0; c < mean.size(); ++c) {
    const size_t at = key.is_value ? static_cast<size_t>(slot) * n_channels + c
                                   : c * kBlockSlots + static_cast<size_t>(slot);
    const auto x = static_cast<float>(mean[c]);
    if (dtype == DType::kF32) {
      static_cast<float*>(block)[at] = x;
    } else if (dtype == DType::kBF16) {
      // Random bits are added below the bits that stay.
      const uint64_t bits = uint64_t{std::bit_cast<uint32_t>(x)} + RandomBits(key, c);
      static_cast<uint16_t*>(block)[at] = static_cast<uint16_t>(bits >> 16);
    } else {
      // Rounds up with the probability of the fraction.
      const bool is_row = exponent != kZeroRow && exponent != kBrokenRow;
      const double scaled = is_row ? std::ldexp(x, -exponent) : 0;
      static_cast<int8_t*>(block)[at] =
          static_cast<int8_t>(std::floor(scaled + RandomBits(key, c) * 0x1p-16));
    }
  }
  if (dtype == DType::kI8) {
    static_cast<uint8_t*>(block)[n_channels * kBlockSlots + static_cast<size_t>(slot)] =
        static_cast<uint8_t>(exponent + 127);
  }
}

const float* KeyRef(const AttentionArgs& args, const TokenRef& token) {
  return args.tokens.k + token.row * args.tokens.stride +
         int64_t{token.kv_head} * args.blocks.shape.head_dim;
}

double BiasRef(const AttentionArgs& args, const TokenRef& token, int64_t j) {
  const AttentionBlocks& blocks = args.blocks;
  const int64_t block = j / kBlockSlots, slot = j % kBlockSlots;
  const uint32_t count = blocks.counts.At<uint32_t>(token.session, token.kv_head, block)[slot];
  const double of_count = std::log(static_cast<double>(count));
  if (blocks.variance_scale == nullptr || count == 1) return of_count;
  std::vector<float> mean(static_cast<size_t>(blocks.shape.head_dim));
  LoadKey(blocks.dictionary_keys.At(token.session, token.sequence, token.kv_head, block),
          blocks.dtype, blocks.shape.head_dim, static_cast<int>(slot), mean.data());
  double variance = 1;  // mean |key|^2
  for (const float x : mean) variance -= static_cast<double>(x) * x;
  return of_count + blocks.variance_scale[token.kv_head] * std::max(variance, 0.0);
}

SlotRef DictionarySlotRef(const AttentionArgs& args, const TokenRef& token, int64_t j) {
  const AttentionBlocks& blocks = args.blocks;
  const int64_t block = j / kBlockSlots, slot = j % kBlockSlots;
  return {blocks.dictionary_keys.At(token.session, token.sequence, token.kv_head, block),
          blocks.dictionary_values.At(token.session, token.sequence, token.kv_head, block),
          static_cast<int>(slot), blocks.has_bias() ? BiasRef(args, token, j) : 0};
}

SlotRef RecentSlotRef(const AttentionArgs& args, const TokenRef& token, int64_t i) {
  const AttentionBlocks& blocks = args.blocks;
  return {blocks.recent_keys.At(token.session, token.sequence, token.kv_head, i / kBlockSlots),
          blocks.recent_values.At(token.session, token.sequence, token.kv_head, i / kBlockSlots),
          static_cast<int>(i % kBlockSlots), 0};
}

void StoreTokenRef(const AttentionArgs& args, const TokenRef& token, const float* key, int64_t i) {
  const AttentionBlocks& blocks = args.blocks;
  const int d = blocks.shape.head_dim, dv = blocks.shape.value_head_dim;
  const int64_t block = i / kBlockSlots;
  const int slot = static_cast<int>(i % kBlockSlots);
  StoreKey(key, d, blocks.dtype,
           blocks.recent_keys.At(token.session, token.sequence, token.kv_head, block), slot);
  StoreValue(args.tokens.v + token.row * args.tokens.stride + int64_t{token.kv_head} * dv, dv,
             ValueStride(dv), blocks.dtype,
             blocks.recent_values.At(token.session, token.sequence, token.kv_head, block), slot);
}

void AttendTokenRef(const AttentionArgs& args, const TokenRef& token,
                    const std::vector<SlotRef>& slots) {
  const AttentionShape& shape = args.blocks.shape;
  std::vector<float> out(static_cast<size_t>(shape.value_head_dim));
  for (int g = 0; g < shape.group(); ++g) {
    const int64_t head = int64_t{token.kv_head} * shape.group() + g;
    AttendSlotsRef(args.tokens.q + token.row * args.tokens.stride + head * shape.head_dim, slots,
                   args.blocks.dtype, shape.head_dim, shape.value_head_dim, out.data());
    const int64_t begin = (token.row * shape.n_heads + head) * shape.value_head_dim;
    for (int c = 0; c < shape.value_head_dim; ++c) {
      if (args.tokens.out_dtype == DType::kBF16) {
        static_cast<BF16*>(args.tokens.out)[begin + c] = RoundToBF16(out[c]);
      } else {
        static_cast<float*>(args.tokens.out)[begin + c] = out[c];
      }
    }
  }
}

uint32_t MergeSlotRef(const AttentionArgs& args, const TokenRef& token, int64_t j,
                      const std::vector<int>& members, const MergeRuleRef& rule) {
  const AttentionBlocks& blocks = args.blocks;
  const int d = blocks.shape.head_dim, dv = blocks.shape.value_head_dim, stride = ValueStride(dv);
  const int64_t block = j / kBlockSlots, slot = j % kBlockSlots;
  uint32_t& count = blocks.counts.At<uint32_t>(token.session, token.kv_head, block)[slot];
  count = static_cast<uint32_t>(
      std::min<uint64_t>(uint64_t{count} + members.size(), std::numeric_limits<uint32_t>::max()));
  std::vector<std::vector<float>> keys, values;
  for (int i : members) {
    const SlotRef from = RecentSlotRef(args, token, i);
    LoadKey(from.keys, blocks.dtype, d, from.slot, keys.emplace_back(d).data());
    LoadValue(from.values, blocks.dtype, dv, stride, from.slot, values.emplace_back(dv).data());
    for (int c = 0; rule.predictions != nullptr && c < dv; ++c) {
      values.back()[c] -= (*rule.predictions)[i][c];
    }
  }
  const auto merge = [&](const BlockPlaces& places, bool is_value, const MergeRef& what) {
    void* to = places.At(token.session, token.sequence, token.kv_head, block);
    const int channels = is_value ? stride : d;
    std::vector<float> mean(static_cast<size_t>(is_value ? dv : d));
    if (is_value) {
      LoadValue(to, blocks.dtype, dv, stride, static_cast<int>(slot), mean.data());
    } else {
      LoadKey(to, blocks.dtype, d, static_cast<int>(slot), mean.data());
    }
    StoreMeanRef(MergedRef(mean, what),
                 {blocks.layer, token.kv_head, static_cast<uint32_t>(j), is_value,
                  token.position / blocks.wave_span},
                 blocks.dtype, to, channels, static_cast<int>(slot));
  };
  if (blocks.dictionary_keys.shared == nullptr) {
    merge(blocks.dictionary_keys, /*is_value=*/false,
          {keys, /*from_mean=*/true, rule.normalizes_keys, static_cast<double>(count)});
  }
  merge(blocks.dictionary_values, /*is_value=*/true,
        {values, rule.predictions == nullptr, rule.normalizes_values, static_cast<double>(count)});
  return count;
}

void AttendRef(DeviceContext&, const AttentionArgs& args) {
  args.blocks.probe ? OvqAttentionRef(args) : SoftmaxAttentionRef(args);
}
const ReferenceOf<AttendCpu> kAttend = AttendRef;

}  // namespace ovq::kernels
