// Family ovq_hybrid, the project's own format (docs/model-format.md): field and tensor names are
// the decoder's. Unread fields are errors.
#include <algorithm>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/problems.h"
#include "base/text.h"
#include "model/cache_policy.h"
#include "model/families/family.h"

namespace ovq::model {
namespace {

// Reads the file's objects, one for each mixer that has fields of its own.
absl::Status FillSections(ConfigFile& file) {
  std::vector<std::string> known;
  for (const kernels::MixerEntry& entry : kernels::MixerRegistry()) {
    if (entry.section.empty()) continue;
    const std::string name(entry.section);
    if (file.sections.try_emplace(name, kernels::Attrs(absl::StrCat(name, "."))).second) {
      known.push_back(name);
    }
  }
  absl::Status problems;
  for (const auto& [key, value] : file.json.items()) {
    if (!value.is_object()) continue;
    const auto section = file.sections.find(key);
    if (section == file.sections.end()) {
      AddProblems(problems, file.fields.Error(key, absl::StrCat("unknown section; known: ",
                                                                absl::StrJoin(known, ", "))));
      continue;
    }
    if (key == kSlotsSection) {
      AddProblems(problems, FillSlots(value, file.rule, section->second));
      continue;
    }
    for (const auto& [field, entry] : value.items()) {
      if (!entry.is_object()) continue;
      AddProblems(problems, section->second.Error(field, "an object is not expected here"));
    }
    FillAttrs(value, section->second);
  }
  return problems;
}

// Reads the layers. `reader` has read the other fields that shape the model.
void ReadLayers(kernels::AttrReader& reader, ModelConfig& config) {
  std::vector<std::string> types = reader.Strings("layer_types");
  std::vector<int64_t> widths(types.size());
  if (config.n_layers > 0) {
    widths = reader.IntPerLayer("intermediate_size", config.n_layers, 0, kMaxHiddenSize);
    if (types.size() != widths.size()) {
      reader.Fail("layer_types", absl::StrCat("has ", types.size(),
                                              " entries, num_hidden_layers is ", config.n_layers));
    }
  }
  const bool has_shape = reader.ok();
  types.resize(std::min(types.size(), widths.size()));
  for (size_t i = 0; i < types.size(); ++i) {
    LayerSpec& layer = config.layers.emplace_back();
    layer.type = types[i];
    layer.is_wrong = !has_shape;
    if (widths[i] > 0) layer.feed_forward = {FeedForwardKind::kGatedSilu, widths[i]};
    if (kernels::FindMixer(layer.type)) continue;
    std::vector<std::string> known;
    for (const kernels::MixerEntry& entry : kernels::MixerRegistry())
      known.emplace_back(entry.layer_type);
    reader.Fail(absl::StrCat("layer_types[", i, "]"),
                absl::StrCat("unknown layer type ", Quoted(layer.type),
                             "; known: ", absl::StrJoin(known, ", ")));
  }
}

// Reads the fields of the layers' mixers. A layer of unknown type may mean any mixer.
void ReadMixers(const ConfigFile& file, ModelConfig& config) {
  std::map<std::string_view, std::shared_ptr<kernels::MixerConfig>> of_type;
  const auto read = [&](const kernels::MixerEntry& entry) {
    std::shared_ptr<kernels::MixerConfig>& mixer = of_type[entry.layer_type];
    if (mixer != nullptr) return mixer;
    mixer = entry.config();
    kernels::ReadFields(file.fields, file.section(entry.section), config.hidden_size, *mixer);
    return mixer;
  };
  for (LayerSpec& layer : config.layers) {
    if (const kernels::MixerEntry* const entry = kernels::FindMixer(layer.type)) {
      layer.mixer = read(*entry);
    } else {
      for (const kernels::MixerEntry& any : kernels::MixerRegistry()) read(any);
    }
  }
}

// Reads what comes before the first layer and after the last.
void ReadOvqHybridEnds(kernels::AttrReader& reader, ModelConfig& config) {
  const double base = reader.FloatOr("pe_lam", 100000.0, 1.0, 1e15);
  if (reader.BoolOr("pe_abs", false)) config.sinusoid_base = base;
  if (config.sinusoid_base > 0 && config.hidden_size % 2 != 0) {
    reader.Fail("hidden_size",
                absl::StrCat("expected an even number with pe_abs, got ", config.hidden_size));
  }
  config.final_norm = config.norm;
  if (!reader.BoolOr("final_norm", true)) config.final_norm.kind = NormKind::kNone;
  config.tie_word_embeddings = reader.BoolOr("tie_word_embeddings", false);
  config.lm_head_bias = reader.BoolOr("lm_head_bias", false);
  reader.Float("logit_scale", config.logit_scale, 1e-12, 1e12);
}

absl::Status ReadOvqHybrid(ConfigFile& file, ModelConfig& config) {
  const kernels::Attrs& fields = file.fields;
  // Fields that are read for every family, and those that mixers share even if no layer reads them.
  for (const char* field :
       {"model_type", "bos_token_id", "eos_token_id", "torch_dtype", "dtype", "tokenizer",
        "tokenizer_byte_offset", "num_attention_heads", "num_key_value_heads", "head_dim",
        "value_head_dim", "sliding_window", "rope_theta"}) {
    fields.Ignore(field);
  }
  absl::Status problems = FillSections(file);
  kernels::AttrReader reader(fields), values(fields);  // fields that shape tensors, and others
  constexpr std::string_view kActivations[] = {"silu"};
  ReadSizes(reader, 0, 0, 0, config);
  values.Float("rms_norm_eps", config.norm.eps, 0.0, 1.0);
  config.norm.bias = reader.BoolOr("norm_bias", false);
  values.ChoiceOr("hidden_act", kActivations);
  ReadOvqHybridEnds(reader, config);
  ReadLayers(reader, config);
  ReadMixers(file, config);
  AddProblems(problems, reader.status());
  AddProblems(problems, values.status());
  return problems;
}

}  // namespace

const Family kOvqHybrid = {.model_type = "ovq_hybrid", .read = ReadOvqHybrid, .is_strict = true};

}  // namespace ovq::model
