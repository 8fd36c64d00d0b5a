// Family gemma3_text of transformers (Gemma 3 270M and 1B), and gemma3, the larger ones, whose text
// model's fields lie in an object of their own: softmax attention with norms before and after its
// parts, sliding layers with a RoPE of their own. Defaults are those of transformers' code.
#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/text.h"
#include "kernels/common/tensor.h"
#include "kernels/mixers/softmax/softmax.h"
#include "model/families/hub.h"

namespace ovq::model {
namespace {

constexpr RopeType kRopes[] = {{"default", RopeScaling::kNone}, {"linear", RopeScaling::kLinear}};

// Refuses what the published models do not have, and RoPE that the authors' code would ignore.
void RefuseOtherThanGemma3(const ConfigFile& config_file, kernels::AttrReader& file) {
  const nlohmann::json cap = config_file.at("attn_logit_softcapping");
  if (!cap.is_null()) {
    file.Fail("attn_logit_softcapping", absl::StrCat("expected null, got ", cap.dump()));
  }
  if (file.BoolOr("use_bidirectional_attention", false)) {
    file.Fail("use_bidirectional_attention", "expected false, got true");
  }
  const nlohmann::json ropes = config_file.at("rope_parameters");
  if (!ropes.is_object() || ropes.empty()) return;
  if (!ropes.contains("full_attention") || !ropes.contains("sliding_attention")) {
    file.Fail("rope_parameters", "expected objects full_attention and sliding_attention");
  }
  if (const nlohmann::json older = config_file.at("rope_scaling");
      older.is_object() && !older.empty()) {
    file.Fail("rope_scaling", "expected none beside rope_parameters");
  }
}

template <class Config>
std::shared_ptr<kernels::LayerConfig<Config>> Gemma3Attention(HubReader& reader,
                                                              const ModelConfig& config,
                                                              const HubRope& rope) {
  auto attention = reader.Attention<Config>();
  kernels::AttentionInput& input = attention->fields.input;
  input.norm = kernels::HeadNorm::kRms;
  input.norm_eps = config.norm.eps;
  input.norm_weight = config.norm.weight;
  const double scalar = reader.file().FloatOr("query_pre_attn_scalar", 256, 1, kMaxScale);
  input.score_scale = static_cast<float>(1 / std::sqrt(scalar));
  attention->names.push_back({"score_scale", "query_pre_attn_scalar", /*is_filled=*/true});
  reader.SetRope(kernels::RopeSpec::Layout::kHalves, attention->fields, attention->names, rope);
  return attention;
}

absl::Status ReadGemma3(ConfigFile& config_file, ModelConfig& config) {
  HubReader reader(config_file, config);
  kernels::AttrReader& file = reader.file();
  reader.ReadSizes({262208, 2304, 26, 8, 4, 256}, /*is_tied=*/true, "hidden_activation",
                   kGeluFirst);
  reader.ReadNorms("rms_norm_eps", 1e-6, {.weight = kernels::NormWeightKind::kOnePlus});
  config.post_norm = config.norm;
  config.embedding_scale = std::sqrt(static_cast<float>(config.hidden_size));
  if (config.weights_dtype == kernels::DType::kBF16) {  // in the type of the weights there
    config.embedding_scale = kernels::ToFloat(kernels::RoundToBF16(config.embedding_scale));
  }
  file.Float("final_logit_softcapping", config.logit_softcap, 0, kMaxScale);
  RefuseOtherThanGemma3(config_file, file);
  const auto full = Gemma3Attention<kernels::FullConfig>(
      reader, config, {.theta = 1e6, .types = kRopes, .layer_type = "full_attention"});
  const auto sliding =
      Gemma3Attention<kernels::SlidingConfig>(reader, config,
                                              {.theta_field = "rope_local_base_freq",
                                               .layer_type = "sliding_attention",
                                               .has_older = false});
  sliding->fields.window = 4096;
  file.Int("sliding_window", sliding->fields.window, 2, kMaxWindow);
  reader.ReadMixer(*full);
  reader.ReadMixer(*sliding);
  int64_t every = 6;
  file.Int("sliding_window_pattern", every, 1, kMaxLayers);
  reader.AddLayers(
      "layer_types",
      {{"sliding_attention", "sliding_attention", sliding},
       {"full_attention", "full_attention", full}},
      [every](int i) { return (i + 1) % every == 0 ? 1 : 0; },
      file.IntOr("intermediate_size", 9216, 1, kMaxHiddenSize));
  for (LayerSpec& layer : config.layers) layer.norm_after = true;
  return reader.Done();
}

// Inside a larger model names begin with language_model., or in newer files with
// model.language_model. for model.
std::vector<TensorInFile> Gemma3Tensor(const ModelConfig& config, const TensorName& name,
                                       const kernels::Shape& shape) {
  constexpr Renamed kNames[] = {{"post_attention_layernorm.", "pre_feedforward_layernorm."},
                                {"post_mixer_layernorm.", "post_attention_layernorm."}};
  const TensorInFile alone = {name.As(kNames), shape};
  std::vector<TensorInFile> places = InEitherPrefix(config, alone);
  TensorInFile inside = alone;
  inside.name = absl::StrCat("language_model.", alone.name);
  places.insert(config.family == &kGemma3 ? places.begin() : places.end(), std::move(inside));
  return places;
}

bool IsUnusedInGemma3(std::string_view name) {
  for (std::string_view part : {"vision_tower.", "multi_modal_projector."}) {
    if (name.starts_with(part) || name.starts_with(absl::StrCat("model.", AbslView(part))))
      return true;
  }
  return name == "language_model.lm_head.weight" || IsUnusedInHub(name);
}

}  // namespace

const Family kGemma3 = {.model_type = "gemma3",
                        .read = ReadGemma3,
                        .tensor = Gemma3Tensor,
                        .is_unused = IsUnusedInGemma3};
const Family kGemma3Text = {.model_type = "gemma3_text",
                            .read = ReadGemma3,
                            .tensor = Gemma3Tensor,
                            .is_unused = IsUnusedInGemma3};

}  // namespace ovq::model
