// Cache policies: how layers keep their past, where the same weights can be read in several ways.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "base/json.h"
#include "model/config.h"

namespace ovq::model {

// A config.json that is being read (model/families/family.h).
struct ConfigFile;
// Where a layer that was trained with full attention has the fields of its slots from.
struct SlotFields;

// An entry of the table in cache_policy.cc.
struct CachePolicy {
  const char* name;             // in --memory, metrics, reports and messages
  std::string_view layer_type;  // of the layers that it serves; empty: as config.json says
  // The config of such a layer, made of its config under another type.
  std::shared_ptr<const kernels::MixerConfig> (*config)(const LayerSpec&,
                                                        const SlotFields&) = nullptr;
  bool serves_rope = false;  // serves full_attention layers with RoPE too
  // Bounds a session, and keeps it exact as long as each token has a slot of its own.
  bool is_exact_at_first = false;
  const char* help = "";  // after the name in --help

  bool operator==(const CachePolicy&) const = default;
};
// All policies. The first leaves layers as they were trained.
std::span<const CachePolicy> CachePolicies();
const CachePolicy* FindCachePolicy(std::string_view name);  // null if unknown
bool HasSlots(
    const CachePolicy& policy);  // whether it caps its layers' slots, whatever a config says
// The rule whose values count where config.json has a field of the slots by rule: the policy's
// name, or as trained, ovq.update.
std::string ServedRule(const CachePolicy& policy, const nlohmann::json& config);

// Adds the fields of the section of the slots as FillAttrs does. Fields of a rule (shares,
// value_weight, merge_variance, pinned_tokens, recent_tokens, variance) may be objects with a value
// for each of some rules; a rule that one does not name has the default. InvalidArgument names
// other objects, and what is no rule or no value of the field.
absl::Status FillSlots(const nlohmann::json& section, std::string_view rule, kernels::Attrs& attrs);
// Sets the types of the layers whose queries and keys carry no positions (ovq_attention,
// closest_pair_attention, key_diff_attention, and full_attention without RoPE), which have the same
// tensors, and gives each its share of a session's slots (ovq.shares). As trained, ovq_attention
// becomes what ovq.update says. CachePolicy::serves_rope includes full_attention with RoPE: its
// slots then hold rotated keys or their means (the rotation of queries does not change distances
// between keys). InvalidArgument names the field, or the policy that fits no layer.
absl::Status ApplyCachePolicy(const CachePolicy& policy, const ConfigFile& file,
                              ModelConfig& config);

// The number of tokens for which layers of a session with this slot cap still compute the full
// attention that they were trained with; beyond it they approximate it. Empty if no layer
// approximates.
std::optional<int64_t> ExactTokens(const ModelConfig& config, int64_t slot_cap);
// ovq.variance as the layers with slots read it, whose config was read without errors; 0 if there
// is none.
float KeyVariance(const ModelConfig& config);

}  // namespace ovq::model
