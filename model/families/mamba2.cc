// Families of Mamba-2 checkpoints: model_type "mamba2" as transformers and flash-linear-attention
// write it, and the folders of the authors' own code (state-spaces/mamba), which name no
// model_type. They have no feed-forwards.
#include "kernels/mixers/mamba2/mamba2.h"

#include <algorithm>
#include <memory>
#include <string>

#include "base/problems.h"
#include "model/families/family.h"

namespace ovq::model {
namespace {

using Mamba = kernels::LayerConfig<kernels::Mamba2Config>;

// Reads the mixer's fields from `in_file` and adds all layers, for all three formats. is_wrong: a
// field of the file is invalid, so the tensors count as unknown.
void AddLayers(const kernels::Attrs& in_file, const std::shared_ptr<Mamba>& mixer, bool is_wrong,
               ModelConfig& config) {
  mixer->fields.norm_eps = config.norm.eps;
  kernels::ReadFields(in_file, in_file, config.hidden_size, *mixer);
  config.final_norm = config.norm;
  config.layers.assign(
      static_cast<size_t>(config.n_layers),
      {.type = "mamba2", .mixer = mixer, .feed_forward = {}, .is_wrong = is_wrong});
}

// The number of heads of a file that gives only the expansion factor of the inner width.
int HeadsFor(kernels::AttrReader& file, int64_t hidden_size, int64_t head_dim) {
  const double expand = file.FloatOr("expand", 2.0, 0.001, 1024.0);
  return static_cast<int>(static_cast<int64_t>(expand * static_cast<double>(hidden_size)) /
                          head_dim);
}

absl::Status ReadHub(ConfigFile& all, ModelConfig& config) {
  const kernels::Attrs& fields = all.fields;
  kernels::AttrReader file(fields);
  constexpr std::string_view kActivations[] = {"silu", "swish"};
  ReadSizes(file, 0, 0, 0, config);
  file.Float(Either(fields, "norm_eps", "layer_norm_epsilon"), config.norm.eps, 0.0, 1.0);
  config.tie_word_embeddings = file.BoolOr("tie_word_embeddings", false);
  file.ChoiceOr("hidden_act", kActivations);
  const auto mixer = std::make_shared<Mamba>();
  const int64_t head_dim = Peek(fields, "head_dim", mixer->fields.head_dim, kMaxHiddenSize);
  mixer->fields.n_heads = HeadsFor(file, config.hidden_size, head_dim);
  const bool has_heads = fields.Has("num_heads");
  mixer->names = {{"num_heads", has_heads ? "num_heads" : "expand", /*is_filled=*/!has_heads},
                  {"head_dim"},
                  {"expand"},
                  {"state_size"},
                  {"n_groups"},
                  {"conv_kernel"},
                  {"use_conv_bias"},
                  {"use_bias"},
                  {"rmsnorm", Either(fields, "rmsnorm", "rms_norm")},
                  {"norm_before_gate"},
                  {"D_has_hdim"},
                  {"dt_limit", Either(fields, "dt_limit", "time_step_limit")}};
  AddLayers(fields, mixer, !file.ok(), config);
  return file.status();
}

// Refuses parts of the authors' models that no layer type here has.
void RefuseOtherThanMamba2(const ConfigFile& all, const kernels::Attrs& ssm,
                           kernels::AttrReader& file, kernels::AttrReader& ssm_file) {
  if (!all.at("attn_layer_idx").empty()) {
    file.Fail("attn_layer_idx", "expected no layers: attention of this kind is not supported");
  }
  file.IntOr("d_intermediate", 0, 0, 0);
  if (ssm_file.StringOr("layer", "Mamba1") != "Mamba2") {
    ssm_file.Fail("layer", "expected \"Mamba2\"; without it the layers are Mamba-1's");
  }
  if (ssm.Has("d_ssm")) ssm_file.Fail("d_ssm", "expected null: it is not supported");
}

absl::Status ReadStateSpaces(ConfigFile& all, ModelConfig& config) {
  const kernels::Attrs& fields = all.fields;
  kernels::Attrs ssm("ssm_cfg.");
  const nlohmann::json section = all.at("ssm_cfg");
  if (!section.is_object()) return fields.Error("ssm_cfg", "expected an object");
  FillAttrs(section, ssm);
  kernels::AttrReader file(fields), ssm_file(ssm);
  RefuseOtherThanMamba2(all, ssm, file, ssm_file);
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
  const auto mixer = std::make_shared<Mamba>();
  const int64_t head_dim = Peek(ssm, "headdim", mixer->fields.head_dim, kMaxHiddenSize);
  mixer->fields.n_heads = HeadsFor(ssm_file, config.hidden_size, head_dim);
  mixer->names = {{"num_heads", "expand", /*is_filled=*/true},
                  {"head_dim", "headdim"},
                  {"expand"},
                  {"state_size", "d_state"},
                  {"n_groups", "ngroups"},
                  {"conv_kernel", "d_conv"},
                  {"use_conv_bias", "conv_bias"},
                  {"use_bias", "bias"},
                  {"rmsnorm"},
                  {"norm_before_gate"},
                  {"D_has_hdim"},
                  {"dt_limit"}};
  AddLayers(ssm, mixer, !file.ok() || !ssm_file.ok(), config);
  absl::Status problems = file.status();
  AddProblems(problems, ssm_file.status());
  return problems;
}

constexpr Renamed kHubNames[] = {{"model.embed_tokens.", "backbone.embeddings."},
                                 {"model.norm.", "backbone.norm_f."},
                                 {"input_layernorm.", "norm."},
                                 {"self_attn.", "mixer."}};
constexpr Renamed kStateSpacesNames[] = {{"model.embed_tokens.", "backbone.embedding."},
                                         {"model.norm.", "backbone.norm_f."},
                                         {"input_layernorm.", "norm."},
                                         {"self_attn.", "mixer."}};

// A tied head is stored too: PyTorch lists both names of one tensor.
bool IsUnusedInMamba2(std::string_view name) { return name == "lm_head.weight"; }

}  // namespace

const Family kMamba2 = {.model_type = "mamba2",
                        .read = ReadHub,
                        .names = kHubNames,
                        .layers = "backbone.layers.",
                        .is_unused = IsUnusedInMamba2};
const Family kStateSpacesMamba2 = {.model_type = "state-spaces mamba2",
                                   .read = ReadStateSpaces,
                                   .names = kStateSpacesNames,
                                   .layers = "backbone.layers.",
                                   .is_unused = IsUnusedInMamba2,
                                   .marker = "ssm_cfg"};

}  // namespace ovq::model
