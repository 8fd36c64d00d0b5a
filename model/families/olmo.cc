// Families olmo2 and olmo3 of transformers: softmax attention with norms after its parts, and norms
// of queries and keys over all heads; in olmo3 three of four layers slide. Defaults are those of
// transformers' code.
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/mixers/softmax/softmax.h"
#include "model/families/hub.h"

namespace ovq::model {
namespace {

constexpr int kOlmoFullEvery = 4;  // if the file does not list its layers

// The fields of RoPE of full layers. Newer files have objects for each type of layers: that of
// sliding ones must say no more than the same base.
HubRope ReadRopes(const ConfigFile& config_file, kernels::AttrReader& file) {
  HubRope rope = {.types = kUsualRopes};
  const nlohmann::json object = config_file.at("rope_parameters");
  if (!object.is_object() || !object.contains("full_attention")) return rope;
  rope.layer_type = "full_attention";
  const nlohmann::json full = object.at("full_attention"),
                       sliding = object.value("sliding_attention", full);
  for (const auto& [field, of] : {std::pair("rope_parameters.full_attention", &full),
                                  std::pair("rope_parameters.sliding_attention", &sliding)}) {
    if (of->is_object()) continue;
    file.Fail(field, absl::StrCat("expected an object, got ", of->dump()));
    return rope;
  }
  const nlohmann::json usual = "default";
  const auto theta = [](const nlohmann::json& of) {
    return of.value("rope_theta", nlohmann::json());
  };
  if (sliding.value("rope_type", usual) != usual || theta(sliding) != theta(full)) {
    file.Fail("rope_parameters.sliding_attention",
              "expected rope_type \"default\" and the rope_theta of full_attention");
  }
  return rope;
}

template <class Config>
std::shared_ptr<kernels::LayerConfig<Config>> OlmoAttention(HubReader& reader,
                                                            const ModelConfig& config,
                                                            const HubRope& rope) {
  auto attention = reader.Attention<Config>();
  kernels::AttentionInput& input = attention->fields.input;
  input.norm = kernels::HeadNorm::kRms;
  input.norms_all_heads = true;
  input.norm_eps = config.norm.eps;
  reader.SetRope(kernels::RopeSpec::Layout::kHalves, attention->fields, attention->names, rope);
  return attention;
}

absl::Status ReadOlmo(ConfigFile& config_file, ModelConfig& config) {
  HubReader reader(config_file, config);
  kernels::AttrReader& file = reader.file();
  const bool may_slide = config.family == &kOlmo3;
  reader.ReadSizes({50304, 4096, 32, 32, 0, 0}, /*is_tied=*/false, "hidden_act", kSiluFirst);
  reader.ReadNorms("rms_norm_eps", 1e-5);
  config.post_norm = config.norm;
  const HubRope rope = may_slide ? ReadRopes(config_file, file) : HubRope{.types = kUsualRopes};
  const auto full = OlmoAttention<kernels::FullConfig>(reader, config, rope);
  const auto sliding = OlmoAttention<kernels::SlidingConfig>(reader, config, rope);
  kernels::RopeSpec& unscaled = sliding->fields.input.rope;
  unscaled.factors.clear();
  unscaled.amplitude = 1;
  sliding->fields.window = 4096;
  if (may_slide) file.Int("sliding_window", sliding->fields.window, 2, kMaxWindow);
  reader.ReadMixer(*full);
  reader.ReadMixer(*sliding);
  reader.AddLayers(
      may_slide ? "layer_types" : "",
      {{"sliding_attention", "sliding_attention", sliding},
       {"full_attention", "full_attention", full}},
      [may_slide](int i) { return may_slide && (i + 1) % kOlmoFullEvery != 0 ? 0 : 1; },
      file.IntOr("intermediate_size", 11008, 1, kMaxHiddenSize));
  for (LayerSpec& layer : config.layers) {
    layer.norm_before = false;
    layer.norm_after = true;
  }
  return reader.Done();
}

constexpr Renamed kOlmoNames[] = {{"post_mixer_layernorm.", "post_attention_layernorm."}};

}  // namespace

const Family kOlmo2 = {
    .model_type = "olmo2", .read = ReadOlmo, .names = kOlmoNames, .is_unused = IsUnusedInHub};
const Family kOlmo3 = {
    .model_type = "olmo3", .read = ReadOlmo, .names = kOlmoNames, .is_unused = IsUnusedInHub};

}  // namespace ovq::model
