// Which memory layers read their whole context through, where the same weights serve several.
#pragma once

#include <cstdint>
#include <optional>

#include "absl/status/status.h"
#include "model/config.h"

namespace ovq {

inline constexpr CachePolicy kCachePolicies[] = {CachePolicy::kAsTrained, CachePolicy::kPaper,
                                                 CachePolicy::kClosestPair,
                                                 CachePolicy::kClosestPairAll, CachePolicy::kExact};
// "model": as config.json says.
const char* CachePolicyName(CachePolicy memory);

// Sets the types of layers whose queries and keys need no positions (ovq_attention,
// closest_pair_attention, and full_attention without RoPE): their tensors are the same.
// kAsTrained: ovq_attention becomes closest_pair_attention where ovq.update says so.
// kClosestPairAll: full_attention with RoPE too, whose rows are then means of turned keys
// (distances between keys are what they are, however queries are turned). Gives each of them its
// share of a session's slots (ovq.shares). InvalidArgument names the field, or the memory that no
// layer can be read through.
absl::Status ApplyCachePolicy(CachePolicy memory, ModelConfig& config);

// How many tokens of a session with this slot cap layers read as the full attention they were
// trained with; after that they approximate it. None where no layer does.
std::optional<int64_t> ExactTokens(const ModelConfig& config, int64_t slot_cap);

}  // namespace ovq
