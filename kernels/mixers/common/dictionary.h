// DictionaryAttention: the base of ovq_attention, closest_pair_attention and key_diff_attention,
// which attend to a dictionary of slots and to the tokens of the unfinished chunk.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/mixers/closest_pair/schedule.h"
#include "kernels/mixers/common/attention.h"

namespace ovq::kernels {

inline constexpr int kMaxChunkLen = 1 << 16;

// Section "ovq" of config.json.
struct DictionaryConfig : AttentionConfig {
  int chunk_len = 128;              // L, at least 2: chunk_size
  int64_t default_slot_cap = 2048;  // N of sessions that name none: max_centroids
  // Variants of OVQ from the KVM paper's published code, kernels/mixers/ovq/README.md.
  bool normalize_centroids = false;
  bool min_state_size = false;
  bool counts_for_rates_only = false;
  bool delta_rule = false;
  // Factor of the variance of a slot's keys in its score (slot_variance.h).
  float variance = 0;
  // The rule of closest pairs, of which KeyDiff has pinned_tokens and recent_tokens; key_size is no
  // field, as it follows from the norm of keys.
  PairRule rule = {};
};

// Reads the section's fields. longest_on_cuda: the largest chunk_len of the mixer on CUDA.
void ReadDictionary(const FieldReaders& from, int longest_on_cuda, DictionaryConfig& config);
// Fails on the variants of OVQ that closest pairs and KeyDiff lack. rule: what does not go with
// them.
void RefuseVariants(AttrReader& section, const DictionaryConfig& config, const char* rule);
// Whether a slot's mean key tells the variance of its keys, and scores have a bias to add it to.
bool MayHaveVariance(const DictionaryConfig& config);
// Whether a slot's mean key tells the variance of its keys.
bool MayHaveMergeVariance(const DictionaryConfig& config);
// Reads the fields that are checked under every rule: value_weight, merge_variance, pinned_tokens,
// recent_tokens and variance.
void ReadRuleFields(AttrReader& section, DictionaryConfig& config);

// fixed: keys and values of the chunk's tokens in blocks come first
// block: per kv head: counts u32 [64] | log_counts f32 [64] | keys [head_dim][64] |
//        values [64][value_stride] | own fields, so that one head's part of a block is one run of
//        memory; without counts, keys come first
class DictionaryAttention : public Attention {
 public:
  AttentionBlocks Blocks(const LayerState& where) const override;

 protected:
  enum BlockField { kCounts, kLogCounts, kKeys, kValues };

  // own: the fields of every head's block after the shared ones. has_counts: false for rules by
  // which every slot is one token.
  DictionaryAttention(const StateSpec& spec, const DictionaryConfig& config, const Growth& law,
                      const std::vector<StateField>& own = {}, bool has_counts = true);
  void LoadOwn(const MixerSpec& spec) override;
  // A chunk's end may change every slot.
  std::vector<StateExtent> OwnExtents(const LayerState& where,
                                      const TokenRange& tokens) const override;

  const DictionaryConfig config;
  const bool has_counts;

 private:
  Buffer variance_scale_;  // AttentionBlocks::variance_scale; empty without a variance
};

}  // namespace ovq::kernels
