// Closest-pair attention: softmax over slots and the tokens of the unfinished chunk, where every
// token is a row until the session's cap is reached and then the closest pairs of slots become
// their means. Exactly: kernels/mixers/closest_pair/README.md.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/mixers/closest_pair/schedule.h"
#include "kernels/mixers/common/attend.h"

namespace ovq {

// Rows as they stand after the last full chunk: a token each, up to the session's slot cap.
Growth GrowsToCap(int chunk_len, int64_t default_slot_cap);

struct ClosestPairConfig {
  AttentionShape shape;
  int chunk_len;                          // L
  int64_t default_slot_cap;               // N of sessions that name none
  std::vector<double> slot_shares = {1};  // of N: Growth::shares
  DType dtype;                            // of keys, values and slots
  PairRule rule = {};                     // key_size aside, which follows from the norm
  int layer = 0;                          // only the random numbers of rounded means depend on it
};

// ovq.value_weight, .pinned_tokens and .recent_tokens; key_size, which no field has, as it is.
PairRule ReadPairRule(AttrReader& section);

// What is kept of candidates beside keys and values, of slots [blocks] and of the chunk's work
// blocks: float, int32 and uint32 [64] of a block.
struct CandidatePlaces {
  // Not above the distance to any candidate that was one before it.
  StatePlace bounds;
  // 0: no candidate. kStalePartner: the bound is no more than that. Else 1 + the candidate whose
  // distance the bound is.
  StatePlace partners;
  // The lowest position, modulo 2^32, of the tokens in it: the order of candidates.
  StatePlace oldest;
};
inline constexpr int32_t kStalePartner = -1;
// The bound of a row that has not joined: no candidate, but in use. Never one of a candidate.
inline constexpr float kNotJoined = -1;

// Work blocks of a chunk are those of its tokens, then as many for the slots that its merges make.
struct PairPlaces {
  CandidatePlaces slots, work;
  StatePlace work_keys, work_values, work_counts;
  StatePlace value_size;  // float, V, or V / K where K is measured
};

// The slots are the dictionary of `blocks`, the chunk's tokens the recent ones.
struct ClosestPairArgs : AttentionArgs {
  PairPlaces places;
  PairRule rule;
};

// CUDA keeps 8 bytes of shared memory for each work slot of a chunk.
inline constexpr int kMaxPairCudaChunkLen = 4096;

// Places in the state's lists of fields.
struct PairFields {
  enum Fixed {
    kWorkKeys,
    kWorkValues,
    kWorkCounts,
    kWorkOldest,
    kWorkBounds,
    kWorkPartners,
    kValueSize
  };
  // Of every head; what tokens change within a chunk comes last.
  enum Block { kCounts, kLogCounts, kKeys, kValues, kOldest, kBounds, kPartners, kOfHead };
};

// fixed: per kv head 2 ceil(chunk_len / 64) work blocks: keys [head_dim][64], values
//        [64][value_stride], counts u32, bounds f32, partners i32, oldest u32 [64]; value_size f32
// block: per kv head: counts u32 [64] | log_counts f32 [64] | keys [head_dim][64] |
//        values [64][value_stride] | oldest u32 [64] | bounds f32 [64] | partners i32 [64]
struct ClosestPairAttention : Attention {
  explicit ClosestPairAttention(const ClosestPairConfig& config);
  ClosestPairAttention(const StateSpec& spec, AttrReader& model, AttrReader& section);

  void Load(const MixerSpec& spec) { config.layer = spec.layer; }
  void Attend(const LayerArgs& args, const AttentionTensors& tokens) const;
  std::vector<StateExtent> UndoExtents(const LayerState& where, const TokenRange& tokens) const;
  bool CanUndoSuffix(const TokenRange& tokens) const;

  ClosestPairConfig config;

 private:
  StatePlace Fixed(const LayerState& where, int field) const;
  StatePlace Growing(const LayerState& where, int field) const;
  bool Joins(const TokenRange& tokens, int part) const;
  void AddBounds(const StateExtent& block, std::vector<StateExtent>& extents) const;
  AttentionBlocks Blocks(const LayerState& where) const;
};

// That slots and work blocks hold as many candidates, and slots that have not joined, as there are
// at this position, each with a count, and that partners are candidates. Then every merge that is
// due finds its pair, and what a chunk leaves has a slot. Fields are in their ranges. DataLoss.
absl::Status CheckPairs(const ClosestPairConfig& config, const LayerBytes& layer);

void ClosestPairRef(DeviceContext& context, const ClosestPairArgs& args);
void ClosestPairCpu(DeviceContext& context, const ClosestPairArgs& args);
void ClosestPairCuda(DeviceContext& context, const ClosestPairArgs& args);

}  // namespace ovq
