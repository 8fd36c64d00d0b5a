// HubReader: the fields that config.json files of transformers' decoders have in common.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "base/json.h"
#include "kernels/common/attrs.h"
#include "kernels/mixers/common/attention.h"
#include "kernels/mixers/gated_delta_net/gated_delta_net.h"
#include "model/config.h"
#include "model/families/family.h"
#include "model/families/renaming.h"

namespace ovq::model {

// Defaults of a family's code for sizes that a file leaves out.
struct HubSizes {
  int64_t vocab_size, hidden_size, n_layers;
  // 0: n_kv_heads is n_heads, head_dim is hidden_size / n_heads.
  int64_t n_heads, n_kv_heads, head_dim;
};

// Defaults of a family's code for gated delta nets.
struct HubDeltaNetSizes {
  int64_t n_key_heads, n_value_heads;
  int64_t key_dim, value_dim;  // value_dim 0: twice key_dim
};

// A family's fields of RoPE beside the base.
struct HubRope {
  std::optional<double> partial =
      {};                    // default of partial_rotary_factor; empty: the field is not read
  bool may_be_null = false;  // a base of null means no RoPE
};

// A layer type by its name in the file's layer_types, and the layer it becomes here.
struct HubLayer {
  std::string_view in_file, type;
};

// Reads a file's fields and fills in what these families share. file() keeps the errors.
class HubReader {
 public:
  HubReader(ConfigFile& config_file, ModelConfig& config)
      : all_(config_file), file_(config_file.fields), config_(config) {}

  kernels::AttrReader& file() { return file_; }
  // Reads vocab_size, hidden_size, num_hidden_layers, tie_word_embeddings; `activation` must be
  // silu.
  void ReadSizes(const HubSizes& sizes, bool is_tied, std::string_view activation = "hidden_act");
  // Sets the layers' norm, and a plain one with the same eps before the head.
  void ReadNorms(std::string_view eps_field, double eps, const NormSpec& norm = {});
  // Makes an attention's config with heads and attention_bias. The family sets the norms of queries
  // and keys, and calls ReadMixer when all is set.
  template <class Config>
  std::shared_ptr<kernels::LayerConfig<Config>> Attention() {
    auto attention = std::make_shared<kernels::LayerConfig<Config>>();
    FillAttention(attention->fields.shape, attention->names);
    return attention;
  }
  // Makes a config with linear_num_key_heads, linear_num_value_heads, linear_key_head_dim,
  // linear_value_head_dim and linear_conv_kernel_dim.
  std::shared_ptr<kernels::LayerConfig<kernels::GatedDeltaNetConfig>> GatedDeltaNet(
      const HubDeltaNetSizes& sizes);
  // Reads the other fields of a mixer by its names.
  void ReadMixer(kernels::MixerConfig& mixer) {
    kernels::ReadFields(all_.fields, all_.fields, config_.hidden_size, mixer);
  }
  // Reads rope_theta from rope_parameters (rope_scaling in older files), else from the top level,
  // else 10000; likewise partial_rotary_factor. Call it after all else of `attention` is set.
  template <class Config>
  void SetRope(kernels::RopeSpec::Layout layout, kernels::LayerConfig<Config>& attention,
               const HubRope& rope = {}) {
    attention.fields.input.rope.layout = layout;
    FillRope(attention.fields.shape.head_dim, attention.fields.input.rope, attention.names, rope);
  }
  // Reads the list `field`; if absent, layer i has type default_type(i).
  std::vector<std::string> LayerTypes(const char* field, std::span<const HubLayer> known,
                                      const std::function<std::string(int)>& default_type);
  // Adds a layer with a gated SiLU feed-forward for each type. mixers: of the known types.
  void AddLayers(const std::vector<std::string>& types, std::span<const HubLayer> known,
                 const std::vector<std::shared_ptr<kernels::MixerConfig>>& mixers,
                 int64_t feed_forward_width);
  // Reads the section "ovq", which no published file has, as ovq_hybrid does, and returns all
  // errors. If a field is wrong, the layers' tensors count as unknown.
  absl::Status Done();

 private:
  void FillAttention(kernels::AttentionShape& shape, kernels::FieldNames& names);
  void FillRope(int head_dim, kernels::RopeSpec& rope, kernels::FieldNames& names,
                const HubRope& fields);
  const nlohmann::json& Rope() const;
  // A number from Rope(), else from the top level, else the fallback; null if it is null there.
  nlohmann::json RopeNumber(const char* field, double fallback, std::string& name_in_file);

  ConfigFile& all_;
  kernels::AttrReader file_;
  ModelConfig& config_;
  HubSizes sizes_{};
};

// The q, k or v part of a gated delta net's tensor that holds the rows of all three, one after
// another.
TensorInFile GatedDeltaNetPart(const ModelConfig& config, const LayerTensor& tensor,
                               std::string name_in_file, const kernels::Shape& shape);

// Candidates for a tensor of a text model, whose names begin with model.language_model. inside a
// multimodal model and with model. alone; the first is what the file's model_type implies.
std::vector<TensorInFile> InEitherPrefix(const ModelConfig& config, TensorInFile tensor);

// RoPE tables that older writers stored, and the stored head of a tied model.
bool IsUnusedInHub(std::string_view name);

}  // namespace ovq::model
