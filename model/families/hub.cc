#include "model/families/hub.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/text.h"
#include "model/json_attrs.h"

namespace ovq {
namespace {

using Json = nlohmann::json;

constexpr int64_t kMaxHeads = 4096;

}  // namespace

void HubReader::ReadSizes(const HubSizes& sizes, bool is_tied, std::string_view activation) {
  constexpr std::string_view kActivations[] = {"silu", "swish"};
  config_.vocab_size = file_.IntOr("vocab_size", sizes.vocab_size, 1, kMaxVocab);
  config_.hidden_size = file_.IntOr("hidden_size", sizes.hidden_size, 1, kMaxHiddenSize);
  config_.n_layers =
      static_cast<int>(file_.IntOr("num_hidden_layers", sizes.n_layers, 1, kMaxLayers));
  config_.tie_word_embeddings = file_.BoolOr("tie_word_embeddings", is_tied);
  file_.ChoiceOr(activation, kActivations);
  sizes_ = sizes;
}

void HubReader::ReadNorms(std::string_view eps_field, double eps, const NormSpec& norm) {
  config_.norm = norm;
  config_.norm.eps = static_cast<float>(file_.FloatOr(eps_field, eps, 0, 1));
  config_.final_norm = config_.norm;
}

void HubReader::SetAttention(Attrs& model) {
  const int64_t n_heads = file_.IntOr("num_attention_heads", sizes_.n_heads, 1, kMaxHeads);
  const int64_t n_kv_heads = sizes_.n_kv_heads > 0 ? sizes_.n_kv_heads : n_heads;
  const int64_t share = std::max<int64_t>(config_.hidden_size / std::max<int64_t>(n_heads, 1), 1);
  const int64_t head_dim = sizes_.head_dim > 0 ? sizes_.head_dim : share;
  model.Set("num_attention_heads", n_heads);
  model.Set("num_key_value_heads", file_.IntOr("num_key_value_heads", n_kv_heads, 1, kMaxHeads));
  model.Set("head_dim", file_.IntOr("head_dim", head_dim, 1, kMaxHiddenSize));
  model.Set("attention_bias", file_.BoolOr("attention_bias", false));
}

void HubReader::SetGatedDeltaNet(const HubDeltaNetSizes& sizes, Attrs& gdn) {
  const auto set = [&](const char* name, const char* in_file, int64_t fallback) {
    const int64_t value = file_.IntOr(in_file, fallback, 1, kMaxHiddenSize);
    gdn.Set(name, value, in_file);
    return value;
  };
  set("num_heads", "linear_num_key_heads", sizes.n_key_heads);
  set("num_v_heads", "linear_num_value_heads", sizes.n_value_heads);
  const int64_t key_dim = set("head_dim", "linear_key_head_dim", sizes.key_dim);
  set("value_head_dim", "linear_value_head_dim",
      sizes.value_dim > 0 ? sizes.value_dim : 2 * key_dim);
  set("conv_size", "linear_conv_kernel_dim", 4);
}

const Json& HubReader::Rope() const {
  static const Json* const none = new Json(Json::object());
  for (const char* field : {"rope_scaling", "rope_parameters"}) {
    const auto found = json_.find(field);
    if (found != json_.end() && found->is_object()) return *found;
  }
  return *none;
}

Json HubReader::RopeNumber(const char* field, double fallback, std::string& display_name) {
  const Json& rope = Rope();
  const bool is_there = rope.contains(field);
  display_name = absl::StrCat(is_there ? "rope_parameters." : "", field);
  const Json value = is_there ? rope.at(field) : json_.value(field, Json(fallback));
  if (value.is_number() || value.is_null()) return value;
  file_.Fail(display_name, absl::StrCat("expected a number, got ", value.dump()));
  return fallback;
}

void HubReader::SetRope(std::string_view layout, Attrs& model, const HubRope& rope) {
  for (const char* field : {"rope_type", "type"}) {
    const Json type = Rope().value(field, Json("default"));
    if (type == "default") continue;
    file_.Fail(absl::StrCat("rope_parameters.", field),
               absl::StrCat("expected \"default\", got ", type.dump(), ", which is not supported"));
  }
  std::string field;
  const Json theta = RopeNumber("rope_theta", 10000, field);
  if (theta.is_null()) {
    if (!rope.may_be_null) file_.Fail(field, "expected a number, got null");
    return model.Set("rope", std::string("none"), field);
  }
  model.Set("rope", std::string(layout), field);
  model.Set("rope_theta", theta.get<double>(), field);
  if (!rope.partial) return;
  const Json partial = RopeNumber("partial_rotary_factor", *rope.partial, field);
  if (partial.is_null()) return file_.Fail(field, "expected a number, got null");
  AttrReader reader(model);
  const auto head_dim = static_cast<double>(reader.IntOr("head_dim", 0, 0, kMaxHiddenSize));
  const double dims = std::clamp(head_dim * partial.get<double>(), -1.0, double{kMaxHiddenSize});
  model.Set("rope_dims", static_cast<int64_t>(dims), field);
}

std::vector<std::string> HubReader::LayerTypes(
    const char* field, std::span<const HubLayer> known,
    const std::function<std::string(int)>& default_type) {
  std::vector<std::string> types;
  if (fields_.Has(field)) {
    types = file_.Strings(field);
    if (file_.ok() && static_cast<int>(types.size()) != config_.n_layers) {
      file_.Fail(field, absl::StrCat("has ", types.size(), " entries, num_hidden_layers is ",
                                     config_.n_layers));
    }
  } else {
    for (int i = 0; i < config_.n_layers; ++i) types.push_back(default_type(i));
  }
  for (size_t i = 0; i < types.size(); ++i) {
    if (std::ranges::find(known, types[i], &HubLayer::in_file) != known.end()) continue;
    std::vector<std::string> names;
    for (const HubLayer& layer : known) names.emplace_back(layer.in_file);
    file_.Fail(
        absl::StrCat(field, "[", i, "]"),
        absl::StrCat("unknown value ", Quoted(types[i]), "; known: ", absl::StrJoin(names, ", ")));
  }
  return types;
}

void HubReader::AddLayers(const std::vector<std::string>& types, std::span<const HubLayer> known,
                          int64_t feed_forward_width) {
  for (const std::string& type : types) {
    LayerSpec& layer = config_.layers.emplace_back();
    const auto found = std::ranges::find(known, type, &HubLayer::in_file);
    if (found != known.end()) layer.type = std::string(found->type);
    layer.feed_forward = {FeedForwardKind::kGatedSilu, feed_forward_width};
  }
}

absl::Status HubReader::Done() {
  const auto rows = json_.find("ovq");
  if (rows != json_.end() && rows->is_object()) {
    for (MixerFields& fields : config_.mixer_fields) {
      FillAttrs(*rows, fields.sections["ovq"], "ovq.");
    }
  }
  for (LayerSpec& layer : config_.layers) layer.is_wrong = !file_.ok();
  return file_.status();
}

TensorInFile GatedDeltaNetPart(const ModelConfig& config, const LayerTensor& tensor,
                               std::string name_in_file, const Shape& shape) {
  AttrReader gdn(config.fields(tensor.layer).section("gdn"));
  const auto width = [&](const char* heads, const char* dim) {
    return gdn.Int(heads, 1, kMaxHiddenSize) * gdn.Int(dim, 1, kMaxHiddenSize);
  };
  const int64_t keys = width("num_heads", "head_dim");
  const int64_t values = width("num_v_heads", "value_head_dim");
  const int64_t per_row = shape.elements() / shape[0];
  const char part = tensor.leaf[std::string_view("self_attn.").size()];  // q_proj, q_conv1d, ...
  const int64_t rows = 2 * keys + values;
  return {std::move(name_in_file),
          shape.rank() == 3 ? Shape{rows, shape[1], shape[2]} : Shape{rows, shape[1]},
          shape.elements(),
          (part == 'q'   ? 0
           : part == 'k' ? keys
                         : 2 * keys) *
              per_row};
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

}  // namespace ovq
