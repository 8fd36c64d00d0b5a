// DictionaryConfig: the section "ovq" of config.json, for ovq_attention and closest_pair_attention.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/mixers/closest_pair/schedule.h"
#include "kernels/mixers/common/attention.h"

namespace ovq::kernels {

struct DictionaryConfig : AttentionConfig {
  int chunk_len = 128;              // L, at least 2: chunk_size
  int64_t default_slot_cap = 2048;  // N of sessions that name none: max_centroids
  // Variants of OVQ from the KVM paper's published code, kernels/mixers/ovq/README.md.
  bool normalize_centroids = false;
  bool min_state_size = false;
  bool counts_for_rates_only = false;
  bool delta_rule = false;
  // The rule of closest pairs; key_size is no field, as it follows from the norm of keys.
  PairRule rule = {};

  // Not fields of config.json: StateSpec and MixerSpec have them.
  DType dtype = DType::kF32;              // of keys, values and slots
  std::vector<double> slot_shares = {1};  // shares of N: Growth::shares
  int layer = 0;                          // seeds the stochastic rounding of slots
};

// The config of a layer in this state.
template <class Config>
Config InState(const StateSpec& spec, Config config) {
  config.dtype = spec.kv_dtype;
  config.slot_shares = spec.slot_shares;
  return config;
}

// Reads the section's fields. longest: the largest chunk_len of the mixer on CUDA.
void ReadDictionary(const FieldReaders& from, int longest_on_cuda, DictionaryConfig& config);
// Reads value_weight, pinned_tokens and recent_tokens.
void ReadPairRule(AttrReader& section, PairRule& rule);

}  // namespace ovq::kernels
