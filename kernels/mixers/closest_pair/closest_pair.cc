#include "kernels/mixers/closest_pair/closest_pair.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/common/dispatch.h"
#include "kernels/mixers/common/block_attention.h"
#include "kernels/mixers/common/slots.h"

namespace ovq::kernels {
namespace {

using enum PairFields::Fixed;
using enum PairFields::Block;

// |key|^2 after the norm, without its weights; 0 without a norm.
float KeySize(HeadNorm norm, int head_dim) {
  switch (norm) {
    case HeadNorm::kNone:
      return 0;
    case HeadNorm::kUnit:
    case HeadNorm::kL2:
      return 1;
    case HeadNorm::kLayer:
    case HeadNorm::kRms:
      break;
  }
  return static_cast<float>(head_dim);
}

}  // namespace

void ReadConfig(const FieldReaders& from, ClosestPairConfig& config) {
  ReadDictionary(from, kMaxPairCudaChunkLen, config);
  for (const auto& [field, is_set] : {std::pair("normalize_centroids", config.normalize_centroids),
                                      {"min_state_size", config.min_state_size},
                                      {"counts_for_rates_only", config.counts_for_rates_only},
                                      {"delta_rule", config.delta_rule}}) {
    if (!is_set) continue;
    from.section.Fail(field, "expected false for rows that merge by closest pairs, got true");
  }
}

Growth GrowsToCap(int chunk_len, int64_t default_slot_cap) {
  return {.name = absl::StrCat("min(t, N) by chunks of ", chunk_len),
          .live =
              [chunk_len](int64_t position, int64_t slot_cap) {
                return std::min(position / chunk_len * chunk_len, slot_cap);
              },
          .period = chunk_len,
          .default_slot_cap = default_slot_cap};
}

ClosestPairAttention::ClosestPairAttention(const StateSpec& spec, const ClosestPairConfig& config)
    : ClosestPairAttention(InState(spec, config)) {}

ClosestPairAttention::ClosestPairAttention(const ClosestPairConfig& config)
    : Attention{.shape = config.shape}, config(config) {
  const int64_t heads = shape.n_kv_heads, work = 2 * NumBlocks(config.chunk_len);
  const int64_t channels = BlockChannels(config.dtype, shape.head_dim),
                value_stride = BlockChannels(config.dtype, ValueStride(shape.value_head_dim));
  const ValidRange bounds = {.least = kNotJoined, .most = HUGE_VAL};
  layout.fixed =
      StateFields({{"work_keys", config.dtype, {heads, work, channels, kBlockSlots}},
                   {"work_values", config.dtype, {heads, work, kBlockSlots, value_stride}},
                   {"work_counts", DType::kU32, {heads, work, kBlockSlots}},
                   {"work_oldest", DType::kU32, {heads, work, kBlockSlots}},
                   {"work_bounds", DType::kF32, {heads, work, kBlockSlots}, bounds},
                   {"work_partners", DType::kI32, {heads, work, kBlockSlots}},
                   {"value_size", DType::kF32, {heads, 1}}});
  layout.growth =
      GrowsToCap(config.chunk_len, config.default_slot_cap).WithShares(config.slot_shares);
  layout.span = config.chunk_len;
  std::vector<StateField> block;
  for (int64_t head = 0; head < heads; ++head) {
    block.push_back({"counts", DType::kU32, {kBlockSlots}});
    block.push_back({"log_counts", DType::kF32, {kBlockSlots}});
    block.push_back({"keys", config.dtype, {channels, kBlockSlots}});
    block.push_back({"values", config.dtype, {kBlockSlots, value_stride}});
    block.push_back({"oldest", DType::kU32, {kBlockSlots}});
    block.push_back({"bounds", DType::kF32, {kBlockSlots}, bounds});
    block.push_back({"partners", DType::kI32, {kBlockSlots}});
  }
  layout.block = StateFields(std::move(block));
  layout.block_heads = shape.n_kv_heads;
  layout.check = [config](const LayerBytes& layer) { return CheckPairs(config, layer); };
}

AttentionBlocks ClosestPairAttention::Blocks(const LayerState& where) const {
  AttentionBlocks blocks;
  blocks.shape = shape;
  blocks.dtype = config.dtype;
  blocks.wave_span = config.chunk_len;
  blocks.dictionary_keys = {where.BlockPlace(layout, kKeys)};
  blocks.dictionary_values = {where.BlockPlace(layout, kValues)};
  blocks.dictionary_bias = {where.BlockPlace(layout, kLogCounts)};
  blocks.recent_spans = 1;
  blocks.recent_keys = {where.FixedPlace(layout, kWorkKeys)};
  blocks.recent_values = {where.FixedPlace(layout, kWorkValues)};
  blocks.layer = config.layer;
  blocks.counts = where.BlockPlace(layout, kCounts);
  blocks.log_counts = where.BlockPlace(layout, kLogCounts);
  return blocks;
}

void ClosestPairAttention::Attend(const LayerArgs& args, const AttentionTensors& tokens) const {
  PairRule rule = config.rule;
  rule.key_size = KeySize(input.norm, shape.head_dim);
  AttentionBlocks blocks = Blocks(args.where);
  blocks.compute_dtype = tokens.out_dtype;
  blocks.live = args.seqs.live[args.where.growth];
  const auto fixed = [&](int field) { return args.where.FixedPlace(layout, field); };
  const auto block = [&](int field) { return args.where.BlockPlace(layout, field); };
  Dispatch<ClosestPairCpu, ClosestPairCuda>(
      args.context, ClosestPairArgs{{blocks, args.seqs, tokens},
                                    {{block(kBounds), block(kPartners), block(kOldest)},
                                     {fixed(kWorkBounds), fixed(kWorkPartners), fixed(kWorkOldest)},
                                     fixed(kWorkKeys),
                                     fixed(kWorkValues),
                                     fixed(kWorkCounts),
                                     fixed(kValueSize)},
                                    rule});
}

bool ClosestPairAttention::Joins(const TokenRange& tokens, int part) const {
  return config.rule.JoinedAt(tokens.end, layout.growth.HeadSlotCap(tokens.slot_cap, part)) > 0;
}

// Once candidates join, every token changes fields of all candidates.
bool ClosestPairAttention::CanUndoSuffix(const TokenRange& tokens) const {
  for (int part = 0; part < layout.growth.parts(); ++part) {
    if (Joins(tokens, part)) return false;
  }
  return true;
}

std::vector<StateExtent> ClosestPairAttention::UndoExtents(const LayerState& where,
                                                           const TokenRange& tokens) const {
  const bool ends = tokens.end % config.chunk_len == 0;
  if (!ends && CanUndoSuffix(tokens)) return RecentExtents(Blocks(where), tokens);
  std::vector<StateExtent> extents = {{where.fixed_offset, own_fixed_bytes()}};
  for (int part = 0; part < layout.growth.parts(); ++part) {
    const bool joins = Joins(tokens, part);
    if (!joins && !ends) continue;
    // Without candidates a chunk only appends its tokens.
    const int64_t live = layout.growth.LiveAt(tokens.end, tokens.slot_cap, part),
                  first = joins ? 0 : (live - config.chunk_len) / kBlockSlots;
    for (const StateExtent& block : where.BlockExtents(layout, part, first, NumBlocks(live))) {
      if (ends) {
        extents.push_back(block);
      } else {
        AddBounds(block, extents);
      }
    }
  }
  return extents;
}

// Adds the part of a block, one head's or all heads', that tokens change within a chunk.
void ClosestPairAttention::AddBounds(const StateExtent& block,
                                     std::vector<StateExtent>& extents) const {
  const size_t bounds = layout.block.offset(kBounds);
  for (size_t head = 0; head < block.bytes; head += layout.head_bytes()) {
    extents.push_back({block.offset + head + bounds, layout.head_bytes() - bounds});
  }
}

}  // namespace ovq::kernels
