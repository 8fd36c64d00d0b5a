#include "model/cache_policy.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <numeric>
#include <string_view>
#include <type_traits>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/problems.h"
#include "base/status_macros.h"
#include "kernels/mixers/closest_pair/closest_pair.h"
#include "kernels/mixers/key_diff/key_diff.h"
#include "kernels/mixers/ovq/ovq.h"
#include "kernels/mixers/softmax/softmax.h"
#include "model/families/family.h"

namespace ovq::model {

struct SlotFields {
  kernels::DictionaryConfig defaults;
  const kernels::Attrs& section;  // "ovq" of config.json
  int64_t d_model;
};

namespace {

constexpr std::string_view kOvq = "ovq_attention", kClosestPair = "closest_pair_attention",
                           kKeyDiff = "key_diff_attention", kFull = "full_attention";
// The values of ovq.update and the layer type of each. All but the paper's are names of policies.
constexpr std::string_view kUpdates[] = {"paper", "closest-pair", "keydiff"},
                           kUpdateTypes[] = {kOvq, kClosestPair, kKeyDiff};
// Chunk length of layers that were trained without chunks: a block of slots, so that a short
// session reads the same blocks as under full attention.
constexpr int64_t kFullAttentionChunk = kernels::kBlockSlots;
// Defaults for published models, which were trained on texts: their first tokens act as attention
// sinks, and the newest are read most where no layer has a window of them.
constexpr int64_t kPublishedPinnedTokens = 4, kPublishedRecentTokens = 256;
constexpr double kMinShare = 1.0 / 1024, kShareRounding = 1e-3;

bool AppliesTo(const CachePolicy& policy, const LayerSpec& layer) {
  if (std::ranges::find(kUpdateTypes, layer.type) != std::end(kUpdateTypes)) return true;
  if (layer.type != kFull) return false;
  return policy.serves_rope || layer.mixer->attention()->input.rope.dims == 0;
}

// Reads ovq.update as an index of kUpdates. A layer whose type names an update has no other.
absl::Status ReadUpdate(const LayerSpec& layer, const kernels::Attrs& section, size_t& update) {
  kernels::AttrReader reader(section);
  update = static_cast<size_t>(reader.ChoiceOr("update", kUpdates));
  kernels::DictionaryConfig checked;
  kernels::ReadRuleFields(reader, checked);
  const auto own = static_cast<size_t>(std::ranges::find(kUpdateTypes, layer.type) - kUpdateTypes);
  if (reader.ok() && section.Has("update") && own != update && own > 0 &&
      own < std::size(kUpdates)) {
    reader.Fail("update", absl::StrCat("expected ", std::string(kUpdates[own]), " for ", layer.type,
                                       ", got ", std::string(kUpdates[update])));
  }
  return reader.status();
}

bool HasLayer(const ModelConfig& config, std::string_view type) {
  return std::ranges::find(config.layers, type, &LayerSpec::type) != config.layers.end();
}

// The slots of a layer that was trained with full attention, before its section is read.
kernels::DictionaryConfig FullAttentionDefaults(const ModelConfig& config) {
  kernels::DictionaryConfig slots;
  if (HasLayer(config, kOvq)) return slots;
  slots.chunk_len = kFullAttentionChunk;
  if (config.family == &kOvqHybrid) return slots;
  slots.rule.pinned_tokens = kPublishedPinnedTokens;
  if (!HasLayer(config, "sliding_attention")) slots.rule.recent_tokens = kPublishedRecentTokens;
  return slots;
}

// A layer's config for another type: with the slots that it has, or with `fields` if it was trained
// with full attention.
template <class Config>
std::shared_ptr<const kernels::MixerConfig> ConfigAs(const LayerSpec& layer,
                                                     const SlotFields& fields) {
  const kernels::MixerConfig& from = *layer.mixer;
  auto to = std::make_shared<kernels::LayerConfig<Config>>();
  to->names = from.names;
  to->section = from.section;
  to->problems = from.problems;
  if constexpr (!std::is_base_of_v<kernels::DictionaryConfig, Config>) {
    static_cast<kernels::AttentionConfig&>(to->fields) = *from.attention();
  } else if (kernels::DictionaryConfig& slots = to->fields; layer.type != kFull) {
    slots = static_cast<const kernels::DictionaryConfig&>(*from.attention());
  } else {
    slots = fields.defaults;
    static_cast<kernels::AttentionConfig&>(slots) = *from.attention();
    to->section = fields.section.path();
    kernels::AttrReader in_place("", from.names), reader(fields.section);
    to->Read({in_place, reader, fields.d_model, kernels::Device::kCpu});
    AddProblems(to->problems, reader.status());
  }
  return to;
}

constexpr CachePolicy kPolicies[] = {
    {.name = "model", .layer_type = "", .help = "what config.json says"},
    {.name = "paper",
     .layer_type = kOvq,
     .config = ConfigAs<kernels::OvqConfig>,
     .help = "slots by the OVQ paper's update, up to max_centroids of them"},
    {.name = "closest-pair",
     .layer_type = kClosestPair,
     .config = ConfigAs<kernels::ClosestPairConfig>,
     .is_exact_at_first = true,
     .help = "slots by merging the closest pairs, up to max_centroids of them"},
    {.name = "closest-pair-all",
     .layer_type = kClosestPair,
     .config = ConfigAs<kernels::ClosestPairConfig>,
     .serves_rope = true,
     .is_exact_at_first = true,
     .help = "full_attention layers with RoPE as well, on their turned keys"},
    {.name = "keydiff",
     .layer_type = kKeyDiff,
     .config = ConfigAs<kernels::KeyDiffConfig>,
     .is_exact_at_first = true,
     .help = "the max_centroids tokens whose keys are least like the mean key"},
    {.name = "keydiff-all",
     .layer_type = kKeyDiff,
     .config = ConfigAs<kernels::KeyDiffConfig>,
     .serves_rope = true,
     .is_exact_at_first = true,
     .help = "likewise, full_attention layers with RoPE as well, by their turned keys"},
    {.name = "exact",
     .layer_type = kFull,
     .config = ConfigAs<kernels::FullConfig>,
     .help = "every token"},
};

// Reads ovq.shares, each of n_layers layers' part of a session's slot cap, 1 in the mean. Sets
// `shares` to that of layer i, whose mixer is `mixer`: one number, or one for each of its key/value
// heads.
absl::Status ReadShares(const kernels::Attrs& section, const kernels::MixerConfig& mixer,
                        size_t n_layers, size_t i, std::vector<double>& shares) {
  constexpr std::string_view key = "shares";
  kernels::AttrReader reader(section);
  const int n_heads = mixer.attention()->shape.n_kv_heads;
  const auto n = static_cast<double>(n_layers);
  const std::vector<std::vector<double>> lists =
      reader.FloatListsOr(key, n_layers, 1, kMinShare, n * std::max(1, n_heads));
  double sum = 0;
  for (const std::vector<double>& list : lists) {
    sum += std::reduce(list.begin(), list.end()) / static_cast<double>(list.size());
  }
  shares = lists[i];
  if (reader.ok() && mixer.problems.ok() && shares.size() != 1 && std::ssize(shares) != n_heads) {
    reader.Fail(key,
                absl::StrCat("expected a number, or one for each of ", n_heads,
                             " key/value heads, as entry ", i, ", got a list of ", shares.size()));
  }
  if (reader.ok() && !(std::abs(sum - n) <= kShareRounding * n)) {
    reader.Fail(key, absl::StrCat("expected ", n_layers,
                                  " numbers or lists whose mean is 1, got one of ", sum / n));
  }
  return reader.status();
}

}  // namespace

std::span<const CachePolicy> CachePolicies() { return kPolicies; }

const CachePolicy* FindCachePolicy(std::string_view name) {
  const auto* const found = std::ranges::find(kPolicies, name, &CachePolicy::name);
  return found == std::end(kPolicies) ? nullptr : found;
}

bool HasSlots(const CachePolicy& policy) {
  return !policy.layer_type.empty() && policy.layer_type != kFull;
}

std::string ServedRule(const CachePolicy& policy, const nlohmann::json& config) {
  if (!policy.layer_type.empty()) return policy.name;
  const nlohmann::json section = config.value(kSlotsSection, nlohmann::json::object());
  const auto update = section.is_object() ? section.find("update") : section.end();
  const bool says = update != section.end() && update->is_string();
  return says ? update->get<std::string>() : std::string(kUpdates[0]);
}

absl::Status FillSlots(const nlohmann::json& section, std::string_view rule,
                       kernels::Attrs& attrs) {
  constexpr std::string_view kShares = "shares";
  constexpr std::string_view kOfRules[] = {kShares,         "value_weight",  "merge_variance",
                                           "pinned_tokens", "recent_tokens", "variance"};
  FillAttrs(section, attrs);
  absl::Status problems;
  for (const auto& [field, entry] : section.items()) {
    if (!entry.is_object()) continue;
    if (std::ranges::find(kOfRules, field) == std::end(kOfRules)) {
      AddProblems(problems, attrs.Error(field, "an object is not expected here"));
      continue;
    }
    const kernels::Attrs by_rule(absl::StrCat(attrs.path(), field, "."));
    for (const auto& [name, value] : entry.items()) {
      const CachePolicy* const policy = FindCachePolicy(name);
      const bool is_list = field == kShares;
      if (policy == nullptr || !HasSlots(*policy)) {
        AddProblems(problems,
                    by_rule.Error(name, "expected the name of a cache policy with slots"));
      } else if (is_list ? !value.is_array() : !value.is_number()) {
        AddProblems(problems,
                    by_rule.Error(name, is_list ? "expected a list of numbers, or lists of numbers"
                                                : "expected a number"));
      } else if (name == rule) {
        attrs.Set(field, *AttrValue(value), absl::StrCat(by_rule.path(), name));
      }
    }
  }
  return problems;
}

absl::Status ApplyCachePolicy(const CachePolicy& policy, const ConfigFile& file,
                              ModelConfig& config) {
  std::vector<LayerSpec*> served;
  for (LayerSpec& layer : config.layers) {
    if (AppliesTo(policy, layer)) served.push_back(&layer);
  }
  const SlotFields fields = {FullAttentionDefaults(config), file.section(kSlotsSection),
                             config.hidden_size};
  for (size_t i = 0; i < served.size(); ++i) {
    LayerSpec& layer = *served[i];
    size_t update = 0;
    RETURN_IF_ERROR(ReadUpdate(layer, fields.section, update));
    RETURN_IF_ERROR(ReadShares(fields.section, *layer.mixer, served.size(), i, layer.slot_shares));
    const bool updates = policy.layer_type.empty() && layer.type == kOvq;
    const CachePolicy& of_layer = updates ? *FindCachePolicy(kUpdates[update]) : policy;
    if (of_layer.layer_type.empty() || of_layer.layer_type == layer.type) continue;
    layer.mixer = of_layer.config(layer, fields);
    layer.approximates = layer.type == kFull;
    layer.type = std::string(of_layer.layer_type);
  }
  if (!served.empty() || policy.layer_type.empty()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("layer_types: expected ovq_attention or full_attention",
                   policy.serves_rope ? "" : " without RoPE", " for --memory ", policy.name,
                   ", got no such layer"));
}

std::optional<int64_t> ExactTokens(const ModelConfig& config, int64_t slot_cap) {
  std::optional<int64_t> tokens;
  for (const LayerSpec& layer : config.layers) {
    if (!layer.approximates) continue;
    const kernels::Growth growth = kernels::Growth().WithShares(layer.slot_shares);
    for (int part = 0; part < growth.parts(); ++part) {
      const int64_t exact = layer.type == kOvq ? 0 : growth.HeadSlotCap(slot_cap, part);
      tokens = std::min(tokens.value_or(exact), exact);
    }
  }
  return tokens;
}

float KeyVariance(const ModelConfig& config) {
  const auto has_slots = [](const LayerSpec& layer) {
    return std::ranges::find(kUpdateTypes, layer.type) != std::end(kUpdateTypes);
  };
  const auto layer = std::ranges::find_if(config.layers, has_slots);
  if (layer == config.layers.end()) return 0;
  return static_cast<const kernels::DictionaryConfig&>(*layer->mixer->attention()).variance;
}

}  // namespace ovq::model
