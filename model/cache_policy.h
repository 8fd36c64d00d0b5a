// Cache policies: how layers keep their past, where the same weights can be read in several ways.
#pragma once

#include <cstdint>
#include <optional>

#include "absl/status/status.h"
#include "model/config.h"

namespace ovq {

inline constexpr CachePolicy kCachePolicies[] = {CachePolicy::kAsTrained, CachePolicy::kPaper,
                                                 CachePolicy::kClosestPair,
                                                 CachePolicy::kClosestPairAll, CachePolicy::kExact};
// kAsTrained is "model".
const char* CachePolicyName(CachePolicy policy);

struct ConfigFile;

// Sets the types of the layers whose queries and keys carry no positions (ovq_attention,
// closest_pair_attention, and full_attention without RoPE), which have the same tensors, and gives
// each its share of a session's slots (ovq.shares). kAsTrained: ovq_attention becomes
// closest_pair_attention where ovq.update says so. kClosestPairAll includes full_attention with
// RoPE: its slots are then means of rotated keys (the rotation of queries does not change distances
// between keys). InvalidArgument names the field, or the policy that fits no layer.
absl::Status ApplyCachePolicy(CachePolicy policy, const ConfigFile& file, ModelConfig& config);

// The number of tokens for which layers of a session with this slot cap still compute the full
// attention that they were trained with; beyond it they approximate it. Empty if no layer
// approximates.
std::optional<int64_t> ExactTokens(const ModelConfig& config, int64_t slot_cap);

}  // namespace ovq
