// The project's own format, docs/model-format.md: field and tensor names are the decoder's. A
// field that nobody reads is an error.
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/text.h"
#include "model/families/family.h"
#include "model/json_attrs.h"

namespace ovq {
namespace {

absl::Status Invalid(std::string_view field, std::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat(std::string(field), ": ", std::string(what)));
}

// The objects of the file: one for each mixer that has fields of its own.
absl::Status FillSections(const nlohmann::json& json, MixerFields& fields) {
  std::vector<std::string> known;
  for (const MixerEntry& entry : MixerRegistry()) {
    if (entry.section.empty()) continue;
    const std::string name(entry.section);
    if (fields.sections.try_emplace(name, Attrs(absl::StrCat(name, "."))).second) {
      known.push_back(name);
    }
  }
  for (const auto& [key, value] : json.items()) {
    if (!value.is_object()) continue;
    const auto section = fields.sections.find(key);
    if (section == fields.sections.end()) {
      return Invalid(key, absl::StrCat("unknown section; known: ", absl::StrJoin(known, ", ")));
    }
    for (const auto& [field, entry] : value.items()) {
      if (entry.is_object()) return section->second.Error(field, "an object is not expected here");
    }
    const absl::Status status = FillAttrs(value, section->second);
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

absl::Status ReadLayers(AttrReader& reader, ModelConfig& config) {
  const std::vector<std::string> types = reader.Strings("layer_types");
  const std::vector<int64_t> widths =
      reader.IntPerLayer("intermediate_size", config.n_layers, 0, kMaxHiddenSize);
  if (!reader.ok()) return reader.status();
  if (static_cast<int64_t>(types.size()) != config.n_layers) {
    return Invalid("layer_types", absl::StrCat("has ", types.size(),
                                               " entries, num_hidden_layers is ", config.n_layers));
  }
  for (int i = 0; i < config.n_layers; ++i) {
    if (!FindMixer(types[i])) {
      std::vector<std::string> known;
      for (const MixerEntry& entry : MixerRegistry()) known.emplace_back(entry.layer_type);
      return Invalid(absl::StrCat("layer_types[", i, "]"),
                     absl::StrCat("unknown layer type ", Quoted(types[i]),
                                  "; known: ", absl::StrJoin(known, ", ")));
    }
    LayerSpec& layer = config.layers.emplace_back();
    layer.type = types[i];
    if (widths[i] > 0) layer.feed_forward = {FeedForwardKind::kGatedSilu, widths[i]};
  }
  return absl::OkStatus();
}

// What stands before the first layer and after the last.
void ReadEnds(AttrReader& reader, ModelConfig& config) {
  const double base = reader.FloatOr("pe_lam", 100000.0, 1.0, 1e15);
  if (reader.BoolOr("pe_abs", false)) config.sinusoid_base = base;
  if (config.sinusoid_base > 0 && config.hidden_size % 2 != 0) {
    reader.Fail("hidden_size",
                absl::StrCat("expected an even number with pe_abs, got ", config.hidden_size));
  }
  config.final_norm = reader.BoolOr("final_norm", true);
  config.tie_word_embeddings = reader.BoolOr("tie_word_embeddings", false);
  config.lm_head_bias = reader.BoolOr("lm_head_bias", false);
  config.logit_scale = static_cast<float>(reader.FloatOr("logit_scale", 1.0, 1e-12, 1e12));
}

absl::Status Read(const nlohmann::json& json, const Attrs& attrs, ModelConfig& config) {
  config.mixer_fields.emplace_back().model = attrs;
  MixerFields& fields = config.mixer_fields.back();
  // What is read for every family, and what mixers share even where no layer reads it.
  for (const char* field :
       {"model_type", "bos_token_id", "eos_token_id", "torch_dtype", "dtype", "tokenizer",
        "tokenizer_byte_offset", "num_attention_heads", "num_key_value_heads", "head_dim",
        "value_head_dim", "sliding_window", "rope_theta"}) {
    fields.model.Ignore(field);
  }
  absl::Status status = FillSections(json, fields);
  if (!status.ok()) return status;
  AttrReader reader(fields.model);
  constexpr std::string_view kActivations[] = {"silu"};
  config.vocab_size = reader.Int("vocab_size", 1, kMaxVocab);
  config.hidden_size = reader.Int("hidden_size", 1, kMaxHiddenSize);
  config.n_layers = static_cast<int>(reader.Int("num_hidden_layers", 1, kMaxLayers));
  config.norm.eps = static_cast<float>(reader.FloatOr("rms_norm_eps", 1e-5, 0.0, 1.0));
  config.norm.bias = reader.BoolOr("norm_bias", false);
  reader.ChoiceOr("hidden_act", kActivations);
  ReadEnds(reader, config);
  if (!reader.ok()) return reader.status();
  return ReadLayers(reader, config);
}

TensorInFile Tensor(std::string_view name, const Shape& shape) {
  return {std::string(name), shape};
}
bool IsUnused(std::string_view) { return false; }

}  // namespace

const Family kOvqHybrid = {"ovq_hybrid", /*is_strict=*/true, Read, Tensor, IsUnused};

}  // namespace ovq
