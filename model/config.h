// ModelConfig from a model folder's config.json (docs/model-format.md), validated. Errors name the
// field.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/common/attrs.h"
#include "kernels/common/tensor.h"
#include "kernels/mixers/mixer.h"

namespace ovq {

enum class TokenizerKind : uint8_t { kNone, kBytes, kSentencePiece, kBpe };
// "bytes", "sentencepiece", "bpe"; "" for none.
const char* TokenizerName(TokenizerKind kind);

struct ModelConfig {
  std::string name;        // the folder's own name
  std::string canonical;   // the file's meaning: fields in order, without spaces and bookkeeping
  std::string model_type;  // "ovq_hybrid"
  int64_t vocab_size = 0;
  int64_t hidden_size = 0;
  int n_layers = 0;
  std::vector<std::string> layer_types;    // [n_layers], all known to the mixer registry
  std::vector<int64_t> intermediate_size;  // [n_layers]; 0 = no feed-forward in that layer
  float rms_norm_eps = 1e-5f;
  bool tie_word_embeddings = false;
  std::optional<int32_t> bos_token_id;
  std::vector<int32_t> eos_token_ids;  // may be empty
  DType weights_dtype = DType::kF32;   // torch_dtype

  TokenizerKind tokenizer = TokenizerKind::kNone;
  int32_t tokenizer_byte_offset = 0;  // kBytes: token id = byte + offset

  Attrs model;                                         // top-level scalar fields, for the mixers
  std::map<std::string, Attrs, std::less<>> sections;  // "ovq", "vq", ...

  const Attrs& section(std::string_view name) const;  // empty Attrs if absent
  // What decides the state of layer i; points into this config.
  StateSpec state_spec(int i, DType kv_dtype, Device device) const;
};

// The states of the layers, from the config alone. InvalidArgument names the field.
absl::StatusOr<std::vector<MixerState>> LayerStates(const ModelConfig& config, DType kv_dtype,
                                                    Device device);

// Reads folder/config.json. NotFound, InvalidArgument (field named), DataLoss (not JSON).
absl::StatusOr<ModelConfig> LoadConfig(const std::string& folder);

}  // namespace ovq
