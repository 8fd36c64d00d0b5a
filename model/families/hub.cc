#include "model/families/hub.h"

#include <algorithm>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/check.h"
#include "base/problems.h"
#include "base/text.h"
#include "model/cache_policy.h"

namespace ovq::model {
namespace {

using Json = nlohmann::json;

constexpr int64_t kMaxHeads = 4096;

}  // namespace

void HubReader::ReadSizes(const HubSizes& sizes, bool is_tied, std::string_view activation,
                          std::span<const std::string_view> known) {
  model::ReadSizes(file_, sizes.vocab_size, sizes.hidden_size, sizes.n_layers, config_);
  config_.tie_word_embeddings = file_.BoolOr("tie_word_embeddings", is_tied);
  const bool is_gelu = known[file_.ChoiceOr(activation, known)].starts_with("gelu");
  gated_ = is_gelu ? FeedForwardKind::kGatedGelu : FeedForwardKind::kGatedSilu;
  sizes_ = sizes;
}

void HubReader::ReadNorms(std::string_view eps_field, double eps, const NormSpec& norm) {
  config_.norm = norm;
  config_.norm.eps = static_cast<float>(eps);
  file_.Float(eps_field, config_.norm.eps, 0, 1);
  config_.final_norm = config_.norm;
}

void HubReader::FillAttention(kernels::AttentionShape& shape, kernels::FieldNames& names) {
  shape.n_heads = static_cast<int>(sizes_.n_heads);
  const int64_t n_heads = Peek(all_.fields, "num_attention_heads", sizes_.n_heads, kMaxHeads);
  // A null stands for n_heads, as does no field where the code has no number of its own.
  const bool is_null =
      all_.json.contains("num_key_value_heads") && all_.json.at("num_key_value_heads").is_null();
  shape.n_kv_heads = is_null ? 0 : static_cast<int>(sizes_.n_kv_heads);
  const int64_t share = std::max<int64_t>(config_.hidden_size / n_heads, 1);
  const int64_t head_dim = sizes_.head_dim > 0 ? sizes_.head_dim : share;
  shape.head_dim = static_cast<int>(Peek(all_.fields, "head_dim", head_dim, kMaxHiddenSize));
  names = {{"num_attention_heads"}, {"num_key_value_heads"}, {"head_dim"}, {"attention_bias"}};
}

std::shared_ptr<kernels::LayerConfig<kernels::GatedDeltaNetConfig>> HubReader::GatedDeltaNet(
    const HubDeltaNetSizes& sizes) {
  auto gdn = std::make_shared<kernels::LayerConfig<kernels::GatedDeltaNetConfig>>();
  gdn->fields.n_heads = static_cast<int>(sizes.n_key_heads);
  gdn->fields.n_v_heads = static_cast<int>(sizes.n_value_heads);
  gdn->fields.head_dim = static_cast<int>(sizes.key_dim);
  const int64_t key_dim = Peek(all_.fields, "linear_key_head_dim", sizes.key_dim, kMaxHiddenSize);
  gdn->fields.value_head_dim =
      static_cast<int>(sizes.value_dim > 0 ? sizes.value_dim : 2 * key_dim);
  gdn->fields.conv_size = 4;
  gdn->fields.norm_eps = config_.norm.eps;
  gdn->names = {{"num_heads", "linear_num_key_heads"},
                {"num_v_heads", "linear_num_value_heads"},
                {"head_dim", "linear_key_head_dim"},
                {"value_head_dim", "linear_value_head_dim"},
                {"conv_size", "linear_conv_kernel_dim"}};
  return gdn;
}

HubReader::RopeObject HubReader::Rope(const HubRope& fields) {
  const Json older = all_.at("rope_scaling");
  if (fields.has_older && older.is_object() && !older.empty()) return {older, "rope_scaling."};
  const Json newer = all_.at("rope_parameters");
  if (!newer.is_object()) return {};
  if (fields.layer_type.empty()) {
    for (const auto& [field, value] : newer.items()) {
      if (!value.is_object()) continue;
      file_.Fail(absl::StrCat("rope_parameters.", field),
                 "expected no object: all layers of this family have the same RoPE");
    }
    return {newer, "rope_parameters."};
  }
  const Json own = newer.value(std::string(fields.layer_type), Json());
  if (!own.is_object()) return {};
  return {own, absl::StrCat("rope_parameters.", AbslView(fields.layer_type), ".")};
}

Json HubReader::RopeNumber(const RopeObject& rope, std::string_view field, std::string_view at_top,
                           double fallback, std::string& name_in_file) {
  const bool is_there = rope.fields.contains(std::string(field));
  name_in_file = is_there ? absl::StrCat(rope.prefix, AbslView(field)) : std::string(at_top);
  const Json value = is_there ? rope.fields.at(std::string(field))
                              : all_.json.value(std::string(at_top), Json(fallback));
  if (value.is_number() || value.is_null()) return value;
  file_.Fail(name_in_file, absl::StrCat("expected a number, got ", value.dump()));
  return fallback;
}

void HubReader::ReadPartialRope(const RopeObject& object, const HubRope& fields,
                                kernels::AttentionConfig& attention, kernels::FieldNames& names) {
  constexpr std::string_view kField = "partial_rotary_factor";
  const int head_dim = attention.shape.head_dim;
  std::string field;
  const Json partial = RopeNumber(object, kField, kField, fields.partial.value_or(1), field);
  if (!fields.partial) {
    if (partial.is_null() || partial == 1) return;
    return file_.Fail(field, absl::StrCat("expected 1, got ", partial.dump()));
  }
  if (partial.is_null()) return file_.Fail(field, "expected a number, got null");
  int& rope_dims = attention.input.rope.dims;
  const double dims = std::clamp(head_dim * partial.get<double>(), -1.0, double{kMaxHiddenSize});
  rope_dims = static_cast<int>(dims);
  names.push_back({"rope_dims", field, /*is_filled=*/true});
  if (rope_dims < 1) {
    file_.Fail(field, absl::StrCat("expected an integer in [1, ", head_dim, "], got ", rope_dims));
  }
}

void HubReader::SetRope(kernels::RopeSpec::Layout layout, kernels::AttentionConfig& attention,
                        kernels::FieldNames& names, const HubRope& fields) {
  kernels::RopeSpec& rope = attention.input.rope;
  rope.layout = layout;
  const RopeObject object = Rope(fields);
  std::string field;
  const Json theta = RopeNumber(object, "rope_theta", fields.theta_field, fields.theta, field);
  names.push_back({"rope_theta", field, /*is_filled=*/true});
  rope.dims = theta.is_null() ? 0 : kernels::kAllChannels;
  if (!theta.is_null()) {
    rope.theta = theta.get<double>();
    ReadPartialRope(object, fields, attention, names);
  } else if (!fields.may_be_null) {
    file_.Fail(field, "expected a number, got null");
  }
  RopeLengths lengths = fields.lengths;
  lengths.most = MostPositions(all_).value_or(lengths.most);
  lengths.original =
      file_.IntOr("original_max_position_embeddings", lengths.original, 2, kMaxRopeLength);
  kernels::Attrs in_object(object.prefix);
  FillAttrs(object.fields, in_object);
  kernels::AttrReader reader(in_object);
  const int n_channels = rope.dims > 0 ? rope.dims : attention.shape.head_dim;
  ReadRopeScaling(reader, fields.types, lengths, n_channels / 2, rope);
  AddProblems(rope_problems_, reader.status());
}

void HubReader::ReadExperts(const HubField& n_experts, const HubField& n_chosen,
                            const HubField& width, MixtureSpec& mixture) {
  kernels::RouterSpec& router = mixture.router;
  router.n_experts =
      static_cast<int>(file_.IntOr(n_experts.name, n_experts.fallback, 1, kernels::kMaxExperts));
  router.n_chosen = static_cast<int>(
      file_.IntOr(n_chosen.name, n_chosen.fallback, 1, std::max(router.n_experts, 1)));
  mixture.width = file_.IntOr(width.name, width.fallback, 1, kMaxHiddenSize);
}

void HubReader::ReadExpertGroups(std::string_view n_groups, std::string_view n_kept,
                                 MixtureSpec& mixture) {
  kernels::RouterSpec& router = mixture.router;
  router.n_groups = static_cast<int>(file_.IntOr(n_groups, 1, 1, kernels::kMaxExperts));
  router.n_kept_groups = static_cast<int>(file_.IntOr(n_kept, 1, 1, router.n_groups));
  if (!file_.ok()) return;
  const int in_group = router.n_experts / router.n_groups;
  if (router.n_experts % router.n_groups != 0) {
    file_.Fail(n_groups, absl::StrCat("expected a divisor of the ", router.n_experts,
                                      " experts, got ", router.n_groups));
  } else if (router.n_chosen > router.n_kept_groups * in_group) {
    file_.Fail(n_kept, absl::StrCat("expected groups that have ", router.n_chosen, " experts, got ",
                                    router.n_kept_groups, " of ", in_group));
  }
}

void HubReader::AddLayers(const char* field, const std::vector<HubLayer>& kinds,
                          const std::function<int(int)>& default_kind,
                          const FeedForwardSpec& feed_forward) {
  std::vector<std::string> types, known;
  for (const HubLayer& kind : kinds) known.emplace_back(kind.in_file);
  if (all_.fields.Has(field)) {
    types = file_.Strings(field);
    if (file_.ok() && static_cast<int>(types.size()) != config_.n_layers) {
      file_.Fail(field, absl::StrCat("has ", types.size(), " entries, num_hidden_layers is ",
                                     config_.n_layers));
    }
  } else {
    for (int i = 0; i < config_.n_layers; ++i) types.push_back(known[default_kind(i)]);
  }
  for (size_t i = 0; i < types.size(); ++i) {
    LayerSpec& layer = config_.layers.emplace_back();
    layer.feed_forward = feed_forward;
    const auto kind = std::ranges::find(kinds, types[i], &HubLayer::in_file);
    if (kind != kinds.end()) {
      layer.type = std::string(kind->type);
      layer.mixer = kind->mixer;
      continue;
    }
    file_.Fail(
        absl::StrCat(field, "[", i, "]"),
        absl::StrCat("unknown value ", Quoted(types[i]), "; known: ", absl::StrJoin(known, ", ")));
  }
  constexpr char kWindow[] = "sliding_window";
  const bool is_null = all_.json.contains(kWindow) && all_.json.at(kWindow).is_null();
  const auto slides = [](const LayerSpec& layer) { return layer.type == "sliding_attention"; };
  if (is_null && std::ranges::any_of(config_.layers, slides)) {
    file_.Fail(kWindow, "expected an integer, as layers slide, got null");
  }
}

absl::Status HubReader::Done() {
  absl::Status problems = file_.status();
  if (const Json slots = all_.at(kSlotsSection); slots.is_object()) {
    const auto section = all_.sections.try_emplace(kSlotsSection, "ovq.").first;
    AddProblems(problems, FillSlots(slots, all_.rule, section->second));
  }
  AddProblems(problems, rope_problems_);
  for (LayerSpec& layer : config_.layers) layer.is_wrong = !problems.ok();
  return problems;
}

TensorInFile GatedDeltaNetPart(const ModelConfig& config, const TensorName& name,
                               std::string name_in_file, const kernels::Shape& shape) {
  const auto& gdn =
      kernels::FieldsAs<kernels::GatedDeltaNetConfig>(*config.layers[name.layer].mixer);
  const int64_t keys = gdn.key_width(), rows = 2 * keys + gdn.value_width();
  const char part = name.leaf[std::string_view("self_attn.").size()];  // q_proj, q_conv1d, ...
  const int64_t first_row = part == 'q' ? 0 : part == 'k' ? keys : 2 * keys;
  return {
      std::move(name_in_file),
      shape.rank() == 3 ? kernels::Shape{rows, shape[1], shape[2]} : kernels::Shape{rows, shape[1]},
      shape.elements(), first_row * (shape.elements() / shape[0])};
}

TensorInFile ExpertPart(const ModelConfig& config, const TensorName& name, StackedExperts stacked,
                        const kernels::Shape& shape) {
  const FeedForwardSpec& spec = config.layers[name.layer].feed_forward;
  const std::string_view of_expert = name.leaf.substr(std::string_view("mlp.experts.").size());
  const size_t dot = of_expert.find('.');
  int expert = 0;
  Check(absl::SimpleAtoi(AbslView(of_expert.substr(0, dot)), &expert), "an expert has its number");
  const std::string_view leaf = of_expert.substr(dot + 1);
  const int64_t n = spec.mixture->router.n_experts, size = shape.elements();
  if (leaf == "down_proj.weight") {
    return {std::move(stacked.down), {n, shape[0], shape[1]}, size, expert * size};
  }
  const int64_t parts = spec.kind == FeedForwardKind::kGatedSilu ? 2 : 1;
  const int64_t part = leaf == "gate_proj.weight" ? 0 : parts - 1;
  return {std::move(stacked.gate_up),
          {n, parts * shape[0], shape[1]},
          size,
          (expert * parts + part) * size};
}

std::vector<TensorInFile> InEitherPrefix(const ModelConfig& config, TensorInFile tensor) {
  constexpr std::string_view kAlone = "model.";
  if (!tensor.name.starts_with(kAlone)) return {std::move(tensor)};
  TensorInFile beside = tensor;
  beside.name = absl::StrCat("model.language_model.", tensor.name.substr(kAlone.size()));
  if (config.family->model_type.ends_with("_text")) return {std::move(tensor), std::move(beside)};
  return {std::move(beside), std::move(tensor)};
}

bool IsUnusedInHub(std::string_view name) {
  return name == "lm_head.weight" || name.ends_with(".rotary_emb.inv_freq");
}

}  // namespace ovq::model
