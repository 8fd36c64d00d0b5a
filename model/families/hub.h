// HubReader: the fields that config.json files of transformers' decoders have in common.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/mixers/common/attention.h"
#include "kernels/mixers/gated_delta_net/gated_delta_net.h"
#include "model/families/family.h"
#include "model/families/rope_scaling.h"

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

// A family's fields of RoPE.
struct HubRope {
  // Default of partial_rotary_factor; empty: it must be 1.
  std::optional<double> partial = {};
  bool may_be_null = false;                     // a base of null means no RoPE
  double theta = 10000;                         // default of the base
  std::string_view theta_field = "rope_theta";  // of the base at the top level
  std::span<const RopeType> types = kPlainRope;
  // The objects rope_parameters and, with has_older, rope_scaling hold, of which an empty one says
  // nothing; a layer type's own object inside of rope_parameters.
  std::string_view layer_type = {};
  bool has_older = true;
  RopeLengths lengths = {};  // defaults
};

// A family's field and the default of its code.
struct HubField {
  std::string_view name;
  int64_t fallback;
};

// A layer type by its name in the file's list, and the layer it becomes here.
struct HubLayer {
  std::string_view in_file, type;
  std::shared_ptr<kernels::MixerConfig> mixer;
};

// Names of a feed-forward's activation: those that some code has alone, and those of code that
// takes any, the default first.
inline constexpr std::string_view kSilu[] = {"silu", "swish"};
inline constexpr std::string_view kSiluFirst[] = {"silu", "swish", "gelu_pytorch_tanh"};
inline constexpr std::string_view kGeluFirst[] = {"gelu_pytorch_tanh", "silu", "swish"};

// Reads a file's fields and fills in what these families share. file() keeps the errors.
class HubReader {
 public:
  HubReader(ConfigFile& config_file, ModelConfig& config)
      : all_(config_file), file_(config_file.fields), config_(config) {}

  kernels::AttrReader& file() { return file_; }
  // Reads vocab_size, hidden_size, num_hidden_layers, tie_word_embeddings; `activation` must be
  // one of `known`.
  void ReadSizes(const HubSizes& sizes, bool is_tied, std::string_view activation = "hidden_act",
                 std::span<const std::string_view> known = kSilu);
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
    // Fields of ours that no such file has (docs/model-format.md), read where there is no RoPE.
    if (mixer.attention() != nullptr) {
      mixer.names.insert(mixer.names.end(), {{"attn_scale"}, {"floor_scale"}});
    }
    kernels::ReadFields(all_.fields, all_.fields, config_.hidden_size, mixer);
  }
  // Reads the base from rope_parameters (rope_scaling in older files), else from the top level,
  // else its default; likewise partial_rotary_factor; and the scaling. Call it after all else of
  // `attention` is set.
  void SetRope(kernels::RopeSpec::Layout layout, kernels::AttentionConfig& attention,
               kernels::FieldNames& names, const HubRope& fields = {});
  // Reads the numbers of experts and of those that a token chooses, and the width of one.
  void ReadExperts(const HubField& n_experts, const HubField& n_chosen, const HubField& width,
                   MixtureSpec& mixture);
  // Reads the numbers of groups of experts and of those that a token keeps, 1 if absent.
  void ReadExpertGroups(std::string_view n_groups, std::string_view n_kept, MixtureSpec& mixture);
  // Adds a layer for each entry of the list `field`; if it is absent, layer i is one of
  // kinds[default_kind(i)].
  void AddLayers(const char* field, const std::vector<HubLayer>& kinds,
                 const std::function<int(int)>& default_kind, const FeedForwardSpec& feed_forward);
  void AddLayers(const char* field, const std::vector<HubLayer>& kinds,
                 const std::function<int(int)>& default_kind, int64_t gated_width) {
    AddLayers(field, kinds, default_kind, FeedForwardSpec{gated_, gated_width});
  }
  // Reads the section "ovq", which no published file has, as ovq_hybrid does, and returns all
  // errors. If a field is wrong, the layers' tensors count as unknown.
  absl::Status Done();

 private:
  void FillAttention(kernels::AttentionShape& shape, kernels::FieldNames& names);
  // An object with fields of RoPE, and its name with a dot.
  struct RopeObject {
    nlohmann::json fields = nlohmann::json::object();
    std::string prefix;
  };
  RopeObject Rope(const HubRope& fields);
  void ReadPartialRope(const RopeObject& object, const HubRope& fields,
                       kernels::AttentionConfig& attention, kernels::FieldNames& names);
  // A number of the object under one name, else of the top level under the other, else the
  // fallback; null if it is null there.
  nlohmann::json RopeNumber(const RopeObject& rope, std::string_view field, std::string_view at_top,
                            double fallback, std::string& name_in_file);

  ConfigFile& all_;
  kernels::AttrReader file_;
  ModelConfig& config_;
  HubSizes sizes_{};
  FeedForwardKind gated_ = FeedForwardKind::kGatedSilu;  // by the activation
  absl::Status rope_problems_;
};

// The q, k or v part of a gated delta net's tensor that holds the rows of all three, one after
// another.
TensorInFile GatedDeltaNetPart(const ModelConfig& config, const TensorName& name,
                               std::string name_in_file, const kernels::Shape& shape);

// Names of tensors that hold the same weights of all experts: gate above up [E, 2 F, D], without a
// gate up alone [E, F, D]; and down [E, D, F].
struct StackedExperts {
  std::string gate_up, down;
};
// The weights mlp.experts.N.gate_proj.weight, up_proj or down_proj of one expert in these tensors.
TensorInFile ExpertPart(const ModelConfig& config, const TensorName& name, StackedExperts stacked,
                        const kernels::Shape& shape);

// Candidates for a tensor of a text model, whose names begin with model.language_model. inside a
// multimodal model and with model. alone; the first is what the file's model_type implies.
std::vector<TensorInFile> InEitherPrefix(const ModelConfig& config, TensorInFile tensor);

// RoPE tables that older writers stored, and the stored head of a tied model.
bool IsUnusedInHub(std::string_view name);

}  // namespace ovq::model
