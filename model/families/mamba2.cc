// Families of Mamba-2 checkpoints: model_type "mamba2" as transformers and flash-linear-attention
// write it, and the folders of the authors' own code (state-spaces/mamba), which name no
// model_type. They have no feed-forwards.
#include <algorithm>
#include <string>
#include <utility>

#include "base/problems.h"
#include "model/families/family.h"
#include "model/families/renaming.h"
#include "model/json_attrs.h"

namespace ovq {
namespace {

// Adds all layers with these mixer fields, for all three formats. is_wrong: a field of the file is
// invalid, so the tensors count as unknown.
void SetLayers(Attrs mixer, bool is_wrong, ModelConfig& config) {
  MixerFields& fields = config.mixer_fields.emplace_back();
  fields.model.Set("rms_norm_eps", double{config.norm.eps}, "norm_eps");
  fields.sections["mamba2"] = std::move(mixer);
  config.final_norm = config.norm;
  LayerSpec layer;
  layer.type = "mamba2";
  layer.is_wrong = is_wrong;
  config.layers.assign(static_cast<size_t>(config.n_layers), layer);
}

// The number of heads of a file that gives only the expansion factor of the inner width.
int64_t HeadsFor(AttrReader& file, std::string_view expand_field, int64_t hidden_size,
                 int64_t head_dim) {
  const double expand = file.FloatOr(expand_field, 2.0, 0.001, 1024.0);
  return static_cast<int64_t>(expand * static_cast<double>(hidden_size)) /
         std::max<int64_t>(head_dim, 1);
}

struct FieldName {
  const char *in_file, *name;
};

absl::Status ReadHub(const nlohmann::json&, const Attrs& fields, ModelConfig& config) {
  AttrReader file(fields);
  constexpr std::string_view kActivations[] = {"silu", "swish"};
  config.vocab_size = file.Int("vocab_size", 1, kMaxVocab);
  config.hidden_size = file.Int("hidden_size", 1, kMaxHiddenSize);
  config.n_layers = static_cast<int>(file.Int("num_hidden_layers", 1, kMaxLayers));
  const char* eps = fields.Has("norm_eps") ? "norm_eps" : "layer_norm_epsilon";
  config.norm.eps = static_cast<float>(file.FloatOr(eps, 1e-5, 0.0, 1.0));
  config.tie_word_embeddings = file.BoolOr("tie_word_embeddings", false);
  file.ChoiceOr("hidden_act", kActivations);
  const int64_t head_dim = file.IntOr("head_dim", 64, 1, kMaxHiddenSize);
  Attrs mixer;
  mixer.Set("head_dim", head_dim, "head_dim");
  mixer.Set("num_heads", HeadsFor(file, "expand", config.hidden_size, head_dim), "expand");
  constexpr FieldName kFields[] = {
      {"num_heads", "num_heads"},     {"expand", "expand"},
      {"state_size", "state_size"},   {"n_groups", "n_groups"},
      {"conv_kernel", "conv_kernel"}, {"use_conv_bias", "use_conv_bias"},
      {"use_bias", "use_bias"},       {"rms_norm", "rmsnorm"},
      {"rmsnorm", "rmsnorm"},         {"norm_before_gate", "norm_before_gate"},
      {"D_has_hdim", "D_has_hdim"},   {"time_step_limit", "dt_limit"},
      {"dt_limit", "dt_limit"}};
  for (const FieldName& field : kFields) fields.CopyTo(mixer, field.in_file, field.name);
  SetLayers(std::move(mixer), !file.ok(), config);
  return file.status();
}

// Refuses parts of the authors' models that no layer type here has.
void RefuseOthers(const nlohmann::json& json, const Attrs& ssm, AttrReader& file,
                  AttrReader& ssm_file) {
  const auto attention = json.find("attn_layer_idx");
  if (attention != json.end() && !attention->is_null() && !attention->empty()) {
    file.Fail("attn_layer_idx", "expected no layers: attention of this kind is not supported");
  }
  file.IntOr("d_intermediate", 0, 0, 0);
  if (ssm_file.StringOr("layer", "Mamba1") != "Mamba2") {
    ssm_file.Fail("layer", "expected \"Mamba2\"; without it the layers are Mamba-1's");
  }
  if (ssm.Has("d_ssm")) ssm_file.Fail("d_ssm", "expected null: it is not supported");
}

absl::Status ReadStateSpaces(const nlohmann::json& json, const Attrs& fields, ModelConfig& config) {
  Attrs ssm("ssm_cfg.");
  const auto section = json.find("ssm_cfg");
  if (!section->is_object()) return fields.Error("ssm_cfg", "expected an object");
  FillAttrs(*section, ssm);
  AttrReader file(fields), ssm_file(ssm);
  RefuseOthers(json, ssm, file, ssm_file);
  const int64_t vocab = file.IntOr("vocab_size", 50277, 1, kMaxVocab);
  const int64_t multiple = file.IntOr("pad_vocab_size_multiple", 8, 1, kMaxVocab);
  config.vocab_size = (vocab + multiple - 1) / std::max<int64_t>(multiple, 1) * multiple;
  config.hidden_size = file.IntOr("d_model", 2560, 1, kMaxHiddenSize);
  config.n_layers = static_cast<int>(file.IntOr("n_layer", 64, 1, kMaxLayers));
  const bool is_rms = file.BoolOr("rms_norm", true);
  config.norm = {.kind = is_rms ? NormKind::kRms : NormKind::kLayer,
                 .eps = static_cast<float>(file.FloatOr("norm_epsilon", 1e-5, 0.0, 1.0)),
                 .bias = !is_rms};
  config.tie_word_embeddings = file.BoolOr("tie_embeddings", true);
  const int64_t head_dim = ssm_file.IntOr("headdim", 64, 1, kMaxHiddenSize);
  Attrs mixer;
  mixer.Set("head_dim", head_dim, "ssm_cfg.headdim");
  mixer.Set("num_heads", HeadsFor(ssm_file, "expand", config.hidden_size, head_dim),
            "ssm_cfg.expand");
  constexpr FieldName kFields[] = {
      {"expand", "expand"},           {"d_state", "state_size"},
      {"ngroups", "n_groups"},        {"d_conv", "conv_kernel"},
      {"conv_bias", "use_conv_bias"}, {"bias", "use_bias"},
      {"rmsnorm", "rmsnorm"},         {"norm_before_gate", "norm_before_gate"},
      {"D_has_hdim", "D_has_hdim"},   {"dt_limit", "dt_limit"}};
  for (const FieldName& field : kFields) ssm.CopyTo(mixer, field.in_file, field.name);
  SetLayers(std::move(mixer), !file.ok() || !ssm_file.ok(), config);
  absl::Status problems = file.status();
  AddProblems(problems, ssm_file.status());
  return problems;
}

constexpr Renamed kOfLayer[] = {{"input_layernorm.", "norm."}, {"self_attn.", "mixer."}};

template <size_t n>
std::vector<TensorInFile> Tensor(std::string_view name, const Shape& shape,
                                 const Renamed (&global)[n]) {
  return {{ReplacePrefix(name, global, "backbone.layers.", kOfLayer), shape}};
}
std::vector<TensorInFile> HubTensor(const ModelConfig&, std::string_view name, const Shape& shape) {
  constexpr Renamed kGlobal[] = {{"model.embed_tokens.", "backbone.embeddings."},
                                 {"model.norm.", "backbone.norm_f."}};
  return Tensor(name, shape, kGlobal);
}
std::vector<TensorInFile> StateSpacesTensor(const ModelConfig&, std::string_view name,
                                            const Shape& shape) {
  constexpr Renamed kGlobal[] = {{"model.embed_tokens.", "backbone.embedding."},
                                 {"model.norm.", "backbone.norm_f."}};
  return Tensor(name, shape, kGlobal);
}

// A tied head is stored too: PyTorch lists both names of one tensor.
bool IsUnused(std::string_view name) { return name == "lm_head.weight"; }

}  // namespace

const Family kMamba2 = {"mamba2", /*is_strict=*/false, ReadHub, HubTensor, IsUnused};
const Family kStateSpacesMamba2 = {
    "state-spaces mamba2",
    /*is_strict=*/false,   ReadStateSpaces, StateSpacesTensor, IsUnused, "ssm_cfg"};

}  // namespace ovq
