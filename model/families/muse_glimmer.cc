// Family of Muse Glimmer's text model: model_type "muse_glimmer", with the text model's fields in
// an object of their own, and "muse_glimmer_text" of transformers. Gated softmax attention with
// norms before and after every part; lists say which layers slide and which have RoPE. Defaults are
// those of transformers' code.
#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/mixers/softmax/softmax.h"
#include "model/families/hub.h"

namespace ovq::model {
namespace {

constexpr double kMaxTheta = 1e15;

void ReadMuseEnds(kernels::AttrReader& file, ModelConfig& config) {
  config.embedding_norm = {.eps = config.norm.eps, .weight = kernels::NormWeightKind::kNone};
  config.final_norm.weight = kernels::NormWeightKind::kPlain;
  config.post_norm = config.norm;
  config.post_norm.eps = 1e-8f;
  file.Float("post_norm_eps", config.post_norm.eps, 0, 1);
  config.logit_scale = 0.19611613513818404f;
  file.Float("output_multiplier", config.logit_scale, 0, kMaxScale);
  config.logit_softcap = 20;
  file.Float("final_logit_softcapping", config.logit_softcap, 0, kMaxScale);
  if (config.tie_word_embeddings) file.Fail("tie_word_embeddings", "expected false");
}

template <class Config>
std::shared_ptr<kernels::LayerConfig<Config>> MuseAttention(HubReader& reader,
                                                            const ModelConfig& config, bool turns) {
  auto attention = reader.Attention<Config>();
  kernels::AttentionInput& input = attention->fields.input;
  // Older files include sqrt(head_dim) in the factor, which is then above 10.
  const double factor = reader.file().FloatOr("qk_scale_factor", 3.87, 0, 10);
  const double head_dim = attention->fields.shape.head_dim;
  input.norm = kernels::HeadNorm::kRms;
  input.norm_eps = config.norm.eps;
  input.norm_weight = kernels::NormWeightKind::kNone;
  input.score_scale = static_cast<float>(factor / std::sqrt(head_dim));
  attention->names.push_back({"score_scale", "qk_scale_factor", /*is_filled=*/true});
  input.gate = true;
  input.rope.dims = 0;
  if (turns) {
    reader.SetRope(kernels::RopeSpec::Layout::kHalves, attention->fields, attention->names);
  }
  return attention;
}

// The mixers of sliding and of full layers.
std::vector<std::shared_ptr<kernels::MixerConfig>> MuseMixers(HubReader& reader,
                                                              const ModelConfig& config,
                                                              bool turns) {
  const auto sliding = MuseAttention<kernels::SlidingConfig>(reader, config, turns);
  sliding->fields.window = 2048;
  reader.file().Int("sliding_window", sliding->fields.window, 2, kMaxWindow);
  const auto full = MuseAttention<kernels::FullConfig>(reader, config, turns);
  reader.ReadMixer(*sliding);
  reader.ReadMixer(*full);
  return {sliding, full};
}

// layer_rope_theta only says whether a layer has RoPE; its base is that of rope_parameters. Refuses
// other bases.
void CheckThetas(const std::vector<double>& thetas, double theta, kernels::AttrReader& file) {
  for (size_t i = 0; i < thetas.size() && file.ok(); ++i) {
    if (thetas[i] == 0 || thetas[i] == theta) continue;
    file.Fail(absl::StrCat("layer_rope_theta[", i, "]"),
              absl::StrCat("expected 0 or rope_theta = ", theta, ", got ", thetas[i]));
  }
}

absl::Status ReadMuse(ConfigFile& config_file, ModelConfig& config) {
  HubReader reader(config_file, config);
  kernels::AttrReader& file = reader.file();
  reader.ReadSizes({202048, 6656, 52, 32, 2, 128}, /*is_tied=*/false, "hidden_activation");
  reader.ReadNorms("rms_norm_eps", 1e-5, {.weight = kernels::NormWeightKind::kOnePlus});
  ReadMuseEnds(file, config);
  const auto rotary = MuseMixers(reader, config, true),
             without_positions = MuseMixers(reader, config, false);
  const int last = config.n_layers - 1;
  const auto is_full = [last](int i) { return (last - i) % 4 == 0; };
  std::vector<double> thetas;
  for (int i = 0; i <= last; ++i) thetas.push_back(is_full(i) ? 0 : 1);
  if (config_file.fields.Has("layer_rope_theta")) {
    thetas = file.FloatsOr("layer_rope_theta", thetas, 0, kMaxTheta);
    CheckThetas(thetas, rotary.front()->attention()->input.rope.theta, file);
  }
  reader.AddLayers(
      "layer_types",
      {{"sliding_attention", "sliding_attention", rotary[0]},
       {"full_attention", "full_attention", rotary[1]}},
      [&](int i) { return is_full(i) ? 1 : 0; },
      file.IntOr("intermediate_size", 19968, 1, kMaxHiddenSize));
  for (size_t i = 0; i < config.layers.size() && i < thetas.size(); ++i) {
    LayerSpec& layer = config.layers[i];
    layer.norm_after = true;
    if (thetas[i] != 0 || layer.mixer == nullptr) continue;
    layer.mixer = without_positions[layer.type == "sliding_attention" ? 0 : 1];
  }
  return reader.Done();
}

std::vector<TensorInFile> MuseTensor(const ModelConfig& config, const TensorName& name,
                                     const kernels::Shape& shape) {
  constexpr Renamed kNames[] = {{"post_attention_layernorm.", "pre_feedforward_layernorm."},
                                {"post_mixer_layernorm.", "post_attention_layernorm."},
                                {"self_attn.g_proj.", "self_attn.gate_proj."}};
  return InEitherPrefix(config, {name.As(kNames), shape});
}

bool IsUnusedInMuse(std::string_view name) {
  return name.starts_with("model.vision_tower.") || name.starts_with("model.vision_adapter.") ||
         name.starts_with("model.vision_projection.") || IsUnusedInHub(name);
}

}  // namespace

const Family kMuseGlimmer = {.model_type = "muse_glimmer",
                             .read = ReadMuse,
                             .tensor = MuseTensor,
                             .is_unused = IsUnusedInMuse};
const Family kMuseGlimmerText = {.model_type = "muse_glimmer_text",
                                 .read = ReadMuse,
                                 .tensor = MuseTensor,
                                 .is_unused = IsUnusedInMuse};

}  // namespace ovq::model
