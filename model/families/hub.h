// What the config.json files of transformers' decoders have in common.
#pragma once

#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "base/json.h"
#include "kernels/common/attrs.h"
#include "model/config.h"
#include "model/families/family.h"
#include "model/families/renaming.h"

namespace ovq {

// What a family's code takes for sizes that a file leaves out.
struct HubSizes {
  int64_t vocab_size, hidden_size, n_layers;
  int64_t n_heads, n_kv_heads, head_dim;  // 0: as many as n_heads; hidden_size / n_heads
};

// The same of gated delta nets.
struct HubDeltaNetSizes {
  int64_t n_key_heads, n_value_heads;
  int64_t key_dim, value_dim;  // the second 0: twice the first
};

// What a family's RoPE may say beside its base.
struct HubRope {
  std::optional<double> partial =
      {};                    // partial_rotary_factor where the file has none; none: not read
  bool may_be_null = false;  // a base of null means no RoPE
};

// A layer of a file, as its layer_types calls it, and what it is here.
struct HubLayer {
  std::string_view in_file, type;
};

// Reads a file's fields and fills what is alike in all of these families. Errors are file()'s.
class HubReader {
 public:
  HubReader(const nlohmann::json& json, const Attrs& fields, ModelConfig& config)
      : json_(json), fields_(fields), file_(fields), config_(config) {}

  AttrReader& file() { return file_; }
  // vocab_size, hidden_size, num_hidden_layers, tie_word_embeddings; `activation` must be silu.
  void ReadSizes(const HubSizes& sizes, bool is_tied, std::string_view activation = "hidden_act");
  // The norms of layers, and the same plain one before the head.
  void ReadNorms(std::string_view eps_field, double eps, const NormSpec& norm = {});
  // Heads and attention_bias of a mixer's fields; norms of queries and keys are the family's.
  void SetAttention(Attrs& model);
  // linear_num_key_heads, linear_num_value_heads, linear_key_head_dim, linear_value_head_dim,
  // linear_conv_kernel_dim.
  void SetGatedDeltaNet(const HubDeltaNetSizes& sizes, Attrs& gdn);
  // Fields of RoPE: rope_theta of rope_parameters (rope_scaling in older files), else of the file,
  // else 10000, and likewise partial_rotary_factor. `layout`: as "rope" of docs/model-format.md.
  void SetRope(std::string_view layout, Attrs& model, const HubRope& rope = {});
  // The list of that field, or where there is none default_type(i) of each layer i.
  std::vector<std::string> LayerTypes(const char* field, std::span<const HubLayer> known,
                                      const std::function<std::string(int)>& default_type);
  // A layer of that type of the file, gated by silu, for each: fields of mixer_fields[0].
  void AddLayers(const std::vector<std::string>& types, std::span<const HubLayer> known,
                 int64_t feed_forward_width);
  // Takes the section "ovq", which no published file has, as that of ovq_hybrid. Where a field is
  // wrong, the tensors are not known.
  absl::Status Done();

 private:
  const nlohmann::json& Rope() const;
  // A number of Rope(), else of the file, else the fallback; null if it is null there.
  nlohmann::json RopeNumber(const char* field, double fallback, std::string& display_name);

  const nlohmann::json& json_;
  const Attrs& fields_;
  AttrReader file_;
  ModelConfig& config_;
  HubSizes sizes_{};
};

// A gated delta net's q, k or v part of a tensor that has their rows one below the other.
TensorInFile GatedDeltaNetPart(const ModelConfig& config, const LayerTensor& tensor,
                               std::string name_in_file, const Shape& shape);

// A tensor of a text model, whose names begin with model.language_model. where it is one of several
// models, and with model. where it is alone; first as the file's model_type says.
std::vector<TensorInFile> InEitherPrefix(const ModelConfig& config, TensorInFile tensor);

// Buffers of RoPE tables that older writers stored, and the head of a tied model written out.
bool IsUnusedInHub(std::string_view name);

}  // namespace ovq
