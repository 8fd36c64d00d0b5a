#include "model/families/hub.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/text.h"

namespace ovq::model {
namespace {

using Json = nlohmann::json;

constexpr int64_t kMaxHeads = 4096;

}  // namespace

void HubReader::ReadSizes(const HubSizes& sizes, bool is_tied, std::string_view activation) {
  constexpr std::string_view kActivations[] = {"silu", "swish"};
  model::ReadSizes(file_, sizes.vocab_size, sizes.hidden_size, sizes.n_layers, config_);
  config_.tie_word_embeddings = file_.BoolOr("tie_word_embeddings", is_tied);
  file_.ChoiceOr(activation, kActivations);
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
  shape.n_kv_heads = static_cast<int>(sizes_.n_kv_heads);
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

Json HubReader::Rope() const {
  const Json older = all_.at("rope_scaling"), newer = all_.at("rope_parameters");
  return older.is_object() ? older : newer.is_object() ? newer : Json::object();
}

Json HubReader::RopeNumber(const char* field, double fallback, std::string& name_in_file) {
  const Json rope = Rope();
  const bool is_there = rope.contains(field);
  name_in_file = absl::StrCat(is_there ? "rope_parameters." : "", field);
  const Json value = (is_there ? rope : all_.json).value(field, Json(fallback));
  if (value.is_number() || value.is_null()) return value;
  file_.Fail(name_in_file, absl::StrCat("expected a number, got ", value.dump()));
  return fallback;
}

void HubReader::SetRope(kernels::RopeSpec::Layout layout, kernels::AttentionConfig& attention,
                        kernels::FieldNames& names, const HubRope& fields) {
  kernels::RopeSpec& rope = attention.input.rope;
  const int head_dim = attention.shape.head_dim;
  rope.layout = layout;
  for (const char* field : {"rope_type", "type"}) {
    const Json type = Rope().value(field, Json("default"));
    if (type == "default") continue;
    file_.Fail(absl::StrCat("rope_parameters.", field),
               absl::StrCat("expected \"default\", got ", type.dump(), ", which is not supported"));
  }
  std::string field;
  const Json theta = RopeNumber("rope_theta", 10000, field);
  names.push_back({"rope_theta", field, /*is_filled=*/true});
  rope.dims = theta.is_null() ? 0 : kernels::kAllChannels;
  if (theta.is_null()) {
    if (!fields.may_be_null) file_.Fail(field, "expected a number, got null");
    return;
  }
  rope.theta = theta.get<double>();
  if (!fields.partial) return;
  const Json partial = RopeNumber("partial_rotary_factor", *fields.partial, field);
  if (partial.is_null()) return file_.Fail(field, "expected a number, got null");
  const double dims = std::clamp(head_dim * partial.get<double>(), -1.0, double{kMaxHiddenSize});
  rope.dims = static_cast<int>(dims);
  names.push_back({"rope_dims", field, /*is_filled=*/true});
  if (rope.dims < 1) {
    file_.Fail(field, absl::StrCat("expected an integer in [1, ", head_dim, "], got ", rope.dims));
  }
}

void HubReader::AddLayers(const char* field, const std::vector<HubLayer>& kinds,
                          const std::function<int(int)>& default_kind, int64_t feed_forward_width) {
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
    layer.feed_forward = {FeedForwardKind::kGatedSilu, feed_forward_width};
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
}

absl::Status HubReader::Done() {
  const Json slots = all_.at("ovq");
  if (slots.is_object()) FillAttrs(slots, all_.sections.try_emplace("ovq", "ovq.").first->second);
  for (LayerSpec& layer : config_.layers) layer.is_wrong = !file_.ok();
  return file_.status();
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
