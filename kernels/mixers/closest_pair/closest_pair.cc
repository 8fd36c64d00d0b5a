#include "kernels/mixers/closest_pair/closest_pair.h"

#include <cmath>

#include "absl/strings/str_cat.h"
#include "kernels/common/dispatch.h"
#include "kernels/mixers/ovq/ovq.h"

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

// The number of slots after the last full chunk: one a token, up to the session's slot cap.
Growth GrowsToCap(const ClosestPairConfig& config) {
  Growth law = GrowsByChunk(config.chunk_len, config.default_slot_cap, /*min_state_size=*/true);
  law.name = absl::StrCat("min(t, N) by chunks of ", config.chunk_len);
  return law;
}

constexpr ValidRange kValidBounds = {.least = kNotJoined, .most = HUGE_VAL};

}  // namespace

void ReadConfig(const FieldReaders& from, ClosestPairConfig& config) {
  ReadDictionary(from, kMaxPairCudaChunkLen, config);
  RefuseVariants(from.section, config, "slots that merge by closest pairs");
}

ClosestPairAttention::ClosestPairAttention(const StateSpec& spec, const ClosestPairConfig& config)
    : DictionaryAttention(spec, config, GrowsToCap(config),
                          {{"oldest", DType::kU32, {kBlockSlots}},
                           {"bounds", DType::kF32, {kBlockSlots}, kValidBounds},
                           {"partners", DType::kI32, {kBlockSlots}}}) {
  const int64_t heads = shape.n_kv_heads, work = 2 * NumBlocks(config.chunk_len);
  SetFixed({{"work_keys", dtype, {heads, work, key_channels(), kBlockSlots}},
            {"work_values", dtype, {heads, work, kBlockSlots, value_channels()}},
            {"work_counts", DType::kU32, {heads, work, kBlockSlots}},
            {"work_oldest", DType::kU32, {heads, work, kBlockSlots}},
            {"work_bounds", DType::kF32, {heads, work, kBlockSlots}, kValidBounds},
            {"work_partners", DType::kI32, {heads, work, kBlockSlots}},
            {"value_size", DType::kF32, {heads, 1}}});
  state_.check = [config](const LayerBytes& layer) { return CheckPairs(config, layer); };
}

void ClosestPairAttention::Attend(const LayerArgs& layer_args, const AttentionArgs& args) const {
  PairRule rule = config.rule;
  rule.key_size = KeySize(input.norm, shape.head_dim);
  const auto fixed = [&](int field) { return layer_args.where.FixedPlace(state_, field); };
  const auto block = [&](int field) { return layer_args.where.BlockPlace(state_, field); };
  Dispatch<ClosestPairCpu, ClosestPairCuda>(
      layer_args.context,
      ClosestPairArgs{args,
                      {{block(kBounds), block(kPartners), block(kOldest)},
                       {fixed(kWorkBounds), fixed(kWorkPartners), fixed(kWorkOldest)},
                       fixed(kWorkKeys),
                       fixed(kWorkValues),
                       fixed(kWorkCounts),
                       fixed(kValueSize)},
                      rule});
}

bool ClosestPairAttention::Joins(const TokenRange& tokens, int part) const {
  return config.rule.JoinedAt(tokens.end, state_.growth.HeadSlotCap(tokens.slot_cap, part)) > 0;
}

// Once candidates join, every token changes fields of all candidates.
bool ClosestPairAttention::CanUndoOwnSuffix(const TokenRange& tokens) const {
  for (int part = 0; part < state_.growth.parts(); ++part) {
    if (Joins(tokens, part)) return false;
  }
  return true;
}

std::vector<StateExtent> ClosestPairAttention::OwnExtents(const LayerState& where,
                                                          const TokenRange& tokens) const {
  const bool ends = tokens.end % config.chunk_len == 0;
  if (!ends && CanUndoOwnSuffix(tokens)) return RecentExtents(Blocks(where), tokens);
  std::vector<StateExtent> extents = {{where.fixed_offset, own_fixed_bytes}};
  for (int part = 0; part < state_.growth.parts(); ++part) {
    const bool joins = Joins(tokens, part);
    if (!joins && !ends) continue;
    // Without candidates a chunk only appends its tokens.
    const int64_t live = state_.growth.LiveAt(tokens.end, tokens.slot_cap, part),
                  first = joins ? 0 : (live - config.chunk_len) / kBlockSlots;
    for (const StateExtent& block : where.BlockExtents(state_, part, first, NumBlocks(live))) {
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
  const size_t bounds = state_.block.offset(kBounds);
  for (size_t head = 0; head < block.bytes; head += state_.head_bytes()) {
    extents.push_back({block.offset + head + bounds, state_.head_bytes() - bounds});
  }
}

}  // namespace ovq::kernels
