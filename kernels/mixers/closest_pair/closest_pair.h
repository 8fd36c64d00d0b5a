// Closest-pair attention: softmax over a dictionary of slots and the tokens of the unfinished
// chunk. Every token gets a slot of its own until the session's slot cap is reached; from then on
// the closest pairs of slots are replaced by their means. The full rule is in README.md beside this
// file.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/mixers/closest_pair/schedule.h"
#include "kernels/mixers/common/dictionary.h"

namespace ovq::kernels {

// key_size of the rule is not read from here: it follows from the norm of keys.
struct ClosestPairConfig : DictionaryConfig {};
// OVQ's variants are refused.
void ReadConfig(const FieldReaders& from, ClosestPairConfig& config);

// Places of the bookkeeping of candidates, for the slots' blocks and for the chunk's work blocks:
// [64] elements a block of float (bounds), int32 (partners) and uint32 (oldest).
struct CandidatePlaces {
  // Lower bound of the distance to every older candidate.
  StatePlace bounds;
  // 0: not a candidate. kStalePartner: the bound is only a lower bound. Otherwise 1 + the index of
  // the candidate at exactly that distance.
  StatePlace partners;
  // Lowest position, modulo 2^32, of the tokens merged into the candidate; it orders candidates.
  StatePlace oldest;
};
inline constexpr int32_t kStalePartner = -1;
// Bound of a slot that is in use but has not joined the candidates. No candidate has this bound.
inline constexpr float kNotJoined = -1;

// A chunk's work blocks hold its tokens, then as many blocks for the means that its merges make.
struct PairPlaces {
  CandidatePlaces slots, work;
  StatePlace work_keys, work_values, work_counts;
  StatePlace value_size;  // float [n_kv_heads]: V, or V / K if K is measured
};

// Arguments of one layer. The slots are the dictionary of `blocks`, the chunk's tokens its recent
// tokens.
struct ClosestPairArgs : AttentionArgs {
  PairPlaces places;
  PairRule rule;
};

// CUDA needs 8 bytes of shared memory for each work slot of a chunk.
inline constexpr int kMaxPairCudaChunkLen = 4096;

// Indices of the state's fields.
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
  // Fields of every head's block. Fields that change within a chunk come last.
  enum Block { kCounts, kLogCounts, kKeys, kValues, kOldest, kBounds, kPartners, kOfHead };
};

// fixed: per kv head 2 ceil(chunk_len / 64) work blocks: keys [head_dim][64], values
//        [64][value_stride], counts u32, bounds f32, partners i32, oldest u32 [64]; value_size f32
// block: each head's own fields: oldest u32 [64] | bounds f32 [64] | partners i32 [64]
class ClosestPairAttention final : public DictionaryAttention {
 public:
  using Config = ClosestPairConfig;
  ClosestPairAttention(const StateSpec& spec, const ClosestPairConfig& config);

 private:
  void Attend(const LayerArgs& layer_args, const AttentionArgs& args) const override;
  std::vector<StateExtent> OwnExtents(const LayerState& where,
                                      const TokenRange& tokens) const override;
  bool CanUndoOwnSuffix(const TokenRange& tokens) const override;
  bool Joins(const TokenRange& tokens, int part) const;
  void AddBounds(const StateExtent& block, std::vector<StateExtent>& extents) const;
};

// Checks a state that comes from outside: the number of candidates and of slots that have not
// joined fits the position, every candidate has a count, partners are candidates and all fields are
// in range. Such a state always has a pair for a merge that is due and a slot for what a chunk
// leaves. DataLoss otherwise.
absl::Status CheckPairs(const ClosestPairConfig& config, const LayerBytes& layer);

void ClosestPairCpu(DeviceContext& context, const ClosestPairArgs& args);
void ClosestPairCuda(DeviceContext& context, const ClosestPairArgs& args);

}  // namespace ovq::kernels
