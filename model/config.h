// ModelConfig: what a decoder is composed of, from a model folder's config.json, validated. Each
// family of checkpoints fills it in its own way (model/families); errors name the file's field.
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

// RMS: x / sqrt(mean x^2 + eps) w. Layer: (x - mean) / sqrt(var + eps) w. None: x. With a bias, +
// b.
enum class NormKind : uint8_t { kRms, kLayer, kNone };
struct NormSpec {
  NormKind kind = NormKind::kRms;
  float eps = 1e-5f;
  bool bias = false;
  NormWeightKind weight = NormWeightKind::kPlain;
};

// Gated SiLU: down(silu(gate x) up x). Squared ReLU: down(relu(up x)^2).
enum class FeedForwardKind : uint8_t { kNone, kGatedSilu, kSquaredRelu };
struct FeedForwardSpec {
  FeedForwardKind kind = FeedForwardKind::kNone;
  int64_t width = 0;
  bool token_shift = false;  // x moves towards the token before, zeros at position 0
  // Reads the rows that the layer's mixer reads, which are normed once; without a token shift.
  bool parallel = false;
};

// What mixers read of a config.json, in their own names.
struct MixerFields {
  Attrs model;                                         // fields that mixers share
  std::map<std::string, Attrs, std::less<>> sections;  // "ovq", "vq", ...

  const Attrs& section(std::string_view name) const;  // empty Attrs if absent
};

// What layers that can be read through several memories are read through: as config.json says, OVQ
// by the paper's rule, closest pairs, closest pairs where keys are turned by RoPE too, or all
// tokens (model/cache_policy.h).
enum class CachePolicy : uint8_t { kAsTrained, kPaper, kClosestPair, kClosestPairAll, kExact };

struct LayerSpec {
  std::string type;  // known to the mixer registry
  int fields = 0;    // of ModelConfig::mixer_fields
  FeedForwardSpec feed_forward;
  // Whether its two parts read normed rows (ModelConfig::norm), and whether what they give is
  // normed before it is added to the residual (post_norm).
  bool norm_before = true, norm_after = false;
  bool is_wrong = false;  // its type or a field that makes it; never where LoadConfig is OK
  std::vector<double> slot_shares = {1};  // StateSpec::slot_shares
  // Trained with full attention and read through rows: what it gives is an approximation once rows
  // stand for several tokens (ExactTokens).
  bool approximates = false;
};

struct Family;

struct ModelConfig {
  std::string name;       // the folder's own name
  std::string canonical;  // the file's meaning: fields in order, without spaces and bookkeeping
  const Family* family = nullptr;
  int64_t vocab_size = 0;
  int64_t hidden_size = 0;
  int n_layers = 0;
  std::vector<LayerSpec> layers;          // [n_layers]
  std::vector<MixerFields> mixer_fields;  // as many as there are kinds of layers
  float embedding_scale = 1;              // of the embedding, before its norm
  NormSpec embedding_norm = {.kind = NormKind::kNone};
  NormSpec norm, post_norm;  // of layers (LayerSpec)
  NormSpec final_norm;       // before the head
  // Added to the embedding, times a weight: sines and cosines of the angles t base^(-2i/D). 0:
  // none.
  double sinusoid_base = 0;
  float residual_scale = 1;  // of what a mixer or feed-forward adds to the residual, normed or not
  // x = a x + b x0 before each layer, x0 the (normed) embedding.
  bool block_lambdas = false;
  // Layer n/2 + j takes in, times a weight, what stood before layer n/2 - 1 - j.
  bool skip_connections = false;
  bool tie_word_embeddings = false;
  bool lm_head_bias = false;
  float logit_scale = 1;    // of logits with their bias
  float logit_softcap = 0;  // c tanh(logit / c); 0: none
  std::optional<int32_t> bos_token_id;
  std::vector<int32_t> eos_token_ids;  // of both files (LoadConfig); may be empty
  DType weights_dtype = DType::kF32;   // torch_dtype

  TokenizerKind tokenizer = TokenizerKind::kNone;
  int32_t tokenizer_byte_offset = 0;  // kBytes: token id = byte + offset

  std::vector<std::string> layer_types() const;
  const MixerFields& fields(int i) const { return mixer_fields[layers[i].fields]; }
  // The layer whose values later ones mix in (value residuals), if layer i is one.
  bool gives_first_values(int i) const;
  // What decides the state of layer i; points into this config.
  StateSpec state_spec(int i, DType kv_dtype, Device device) const;
};

inline constexpr int64_t kMaxVocab = 1 << 21;
inline constexpr int64_t kMaxHiddenSize = 1 << 20;
inline constexpr int64_t kMaxLayers = 4096;

// The state of layer i's mixer.
absl::StatusOr<MixerState> MakeMixerState(const ModelConfig& config, int i, DType kv_dtype,
                                          Device device);
// The states of the layers, from the config alone: the mixers', then those of the feed-forwards
// that have one. InvalidArgument names the field.
absl::StatusOr<std::vector<MixerState>> LayerStates(const ModelConfig& config, DType kv_dtype,
                                                    Device device);

}  // namespace ovq
