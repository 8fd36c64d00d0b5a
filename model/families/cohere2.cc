// Family cohere2 of transformers (Command R7B, Command A, Tiny Aya): sliding attention with RoPE,
// full attention without positions, and a parallel feed-forward in every layer. Defaults are those
// of transformers' code.
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/mixers/softmax/softmax.h"
#include "model/families/hub.h"

namespace ovq::model {
namespace {

constexpr int kCohere2FullEvery = 4;  // if the file does not list its layers

// Refuses fields whose values ask for another model, although no code reads them.
void RefuseOtherThanCohere2(const ConfigFile& config_file, kernels::AttrReader& file) {
  const std::pair<const char*, nlohmann::json> kExpected[] = {
      {"order_of_interleaved_layers", "local_attn_first"},
      {"position_embedding_type", "rope_gptj"},
      {"rotary_pct", 1.0},
      {"use_gated_activation", true},
      {"use_parallel_block", true},
      {"use_qk_norm", false}};
  for (const auto& [field, expected] : kExpected) {
    const nlohmann::json found = config_file.at(field);
    if (found.is_null() || found == expected) continue;
    file.Fail(field, absl::StrCat("expected ", expected.dump(), ", got ", found.dump()));
  }
  for (const char* field : {"sliding_window_pattern", "layer_switch"}) {
    if (!config_file.fields.Has("layer_types")) {
      file.IntOr(field, kCohere2FullEvery, kCohere2FullEvery, kCohere2FullEvery);
    }
  }
}

absl::Status ReadCohere2(ConfigFile& config_file, ModelConfig& config) {
  HubReader reader(config_file, config);
  kernels::AttrReader& file = reader.file();
  reader.ReadSizes({256000, 8192, 40, 64, 0, 0}, /*is_tied=*/true, "hidden_act", kSiluFirst);
  reader.ReadNorms("layer_norm_eps", 1e-5, {.kind = NormKind::kLayer});
  if (file.BoolOr("use_embedding_sharing", config.tie_word_embeddings) !=
      config.tie_word_embeddings) {
    file.Fail("use_embedding_sharing", "contradicts tie_word_embeddings, which is true by default");
  }
  config.logit_scale = 0.0625;
  file.Float("logit_scale", config.logit_scale, 0, kMaxScale);
  RefuseOtherThanCohere2(config_file, file);
  const auto sliding = reader.Attention<kernels::SlidingConfig>();
  const auto full = reader.Attention<kernels::FullConfig>();
  sliding->fields.input.norm = full->fields.input.norm = kernels::HeadNorm::kNone;
  sliding->fields.window = 4096;
  file.Int("sliding_window", sliding->fields.window, 2, kMaxWindow);
  reader.SetRope(kernels::RopeSpec::Layout::kInterleaved, sliding->fields, sliding->names,
                 {.types = kUsualRopes});
  reader.ReadMixer(*sliding);
  reader.ReadMixer(*full);
  reader.AddLayers(
      "layer_types",
      {{"sliding_attention", "sliding_attention", sliding},
       {"full_attention", "full_attention", full}},
      [](int i) { return (i + 1) % kCohere2FullEvery == 0 ? 1 : 0; },
      file.IntOr("intermediate_size", 22528, 1, kMaxHiddenSize));
  for (LayerSpec& layer : config.layers) layer.feed_forward.parallel = true;
  return reader.Done();
}

}  // namespace

const Family kCohere2 = {.model_type = "cohere2", .read = ReadCohere2, .is_unused = IsUnusedInHub};

}  // namespace ovq::model
