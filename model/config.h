// ModelConfig describes a decoder, validated, from a model folder's config.json. Each family of
// checkpoints fills it in its own way (model/families). Errors name the file's field.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "kernels/common/tensor.h"
#include "kernels/mixers/mixer.h"
#include "kernels/ops/experts.h"
#include "model/quantization.h"

namespace ovq::model {

enum class TokenizerKind : uint8_t { kNone, kBytes, kSentencePiece, kBpe };
// "bytes", "sentencepiece", "bpe"; "" for none.
const char* TokenizerName(TokenizerKind kind);

// kRms: x / sqrt(mean x^2 + eps) w. kLayer: (x - mean) / sqrt(var + eps) w. kNone: x. A bias is
// added last.
enum class NormKind : uint8_t { kRms, kLayer, kNone };
struct NormSpec {
  NormKind kind = NormKind::kRms;
  float eps = 1e-5f;
  bool bias = false;
  kernels::NormWeightKind weight = kernels::NormWeightKind::kPlain;
};

// kGatedSilu: down(silu(gate x) up x). kGatedGelu: down(gelu(gate x) up x), GELU by its tanh
// (kernels::GeGlu). kSquaredRelu: down(relu(up x)^2).
enum class FeedForwardKind : uint8_t { kNone, kGatedSilu, kGatedGelu, kSquaredRelu };

// A mixture of experts: feed-forwards of one kind and width, of which a router chooses some for
// each token. Added to them is the feed-forward that the layer has beside it.
struct MixtureSpec {
  kernels::RouterSpec router = {};
  int64_t width = 0;         // of one expert
  int64_t latent_width = 0;  // experts read and write a space of this width; 0: d_model
  bool router_bias = false;  // RouterSpec's bias
  bool latent_bias = false;  // of the products into and out of the latent space
  bool gate = false;         // the feed-forward beside it is multiplied by sigmoid(w . x)
};

struct FeedForwardSpec {
  FeedForwardKind kind = FeedForwardKind::kNone;
  int64_t width = 0;         // 0: there are only experts
  bool bias = false;         // gate, up and down have biases
  bool token_shift = false;  // x is interpolated with the previous token's, zeros at position 0
  // Beside the mixer, on the same normed input, not after it; excludes token_shift.
  bool parallel = false;
  std::optional<MixtureSpec> mixture = std::nullopt;

  bool exists() const { return kind != FeedForwardKind::kNone; }
};

struct LayerSpec {
  std::string type;  // known to the mixer registry
  // Its mixer's part of config.json, of the registry's type for it; null where `type` is unknown.
  std::shared_ptr<const kernels::MixerConfig> mixer = {};
  FeedForwardSpec feed_forward = {};
  // Whether the mixer and the feed-forward read normed input (ModelConfig::norm), and whether their
  // output is normed before it is added to the residual (post_norm).
  bool norm_before = true, norm_after = false;
  // In families whose layers are made of a file's blocks: the number of the layer's first one.
  int first_block = 0;
  // Channels of a head's value in a latent attention whose values its config counts as latents
  // (kimi_linear).
  int64_t latent_value_dim = 0;
  // Its type or one of its mixer's fields is invalid; never set where LoadConfig is OK.
  bool is_wrong = false;
  std::vector<double> slot_shares = {1};  // StateSpec::slot_shares
  // Trained with full attention but read through slots: approximate once slots stand for several
  // tokens (ExactTokens).
  bool approximates = false;
};

struct Family;

struct ModelConfig {
  std::string name;       // ModelName
  std::string canonical;  // config.json with sorted fields, without white space and bookkeeping
  const Family* family = nullptr;
  int64_t vocab_size = 0;
  int64_t hidden_size = 0;
  int n_layers = 0;
  std::vector<LayerSpec> layers;  // [n_layers]
  float embedding_scale = 1;      // multiplies the embedding, before its norm
  NormSpec embedding_norm = {.kind = NormKind::kNone};
  NormSpec norm, post_norm;  // of the layers (LayerSpec)
  NormSpec final_norm;       // before the head
  // Base of sinusoidal positions: sines and cosines of the angles t base^(-2i/D), times a weight,
  // are added to the embedding. 0: none.
  double sinusoid_base = 0;
  float residual_scale = 1;  // multiplies what a mixer or feed-forward adds to the residual
  // Before each layer x = a x + b x0, with x0 the (normed) embedding.
  bool block_lambdas = false;
  // Before layer n/2 + j of n, the output of layer n/2 - 1 - j is added with a weight.
  bool skip_connections = false;
  // Query heads to a head of keys and values in a file of rwkv7backbone. The decoder has such a
  // head once for each of them.
  int kv_group_in_file = 1;
  bool tie_word_embeddings = false;
  bool lm_head_bias = false;
  float logit_scale = 1;    // multiplies the logits, bias included
  float logit_softcap = 0;  // c in c tanh(logit / c); 0: none
  std::optional<int32_t> bos_token_id;
  std::vector<int32_t> eos_token_ids;  // of config.json and generation_config.json; may be empty
  kernels::DType weights_dtype = kernels::DType::kF32;  // torch_dtype
  QuantizationSpec quantization;

  // By the folder's files. kBpe: tokenizer.json may turn out to be of another type, and
  // tokenizer.model may stand in for it (Tokenizer::kind).
  TokenizerKind tokenizer = TokenizerKind::kNone;
  int32_t tokenizer_byte_offset = 0;  // kBytes: token id = byte + offset

  std::vector<std::string> layer_types() const;
  // The type of products and states unless options say otherwise: BF16 for BF16 and for quantized
  // checkpoints, else F32.
  kernels::DType default_dtype() const;
  // Bytes of the embedding's table in memory, in the type of the checkpoint.
  size_t embedding_bytes() const;
  // The length up to which sessions have RoPE's factors for short texts, if all of them end by
  // then (RopeSpec::short_tokens); 0: there is no such difference.
  int64_t short_rope_tokens() const;
  // Whether later layers mix in the values of layer i (value residuals).
  bool gives_first_values(int i) const;
  // All that the state of layer i depends on; points into this config.
  kernels::StateSpec state_spec(int i, kernels::DType kv_dtype, kernels::Device device) const;
};

inline constexpr int64_t kMaxVocab = 1 << 21;
inline constexpr int64_t kMaxHiddenSize = 1 << 20;
inline constexpr int64_t kMaxLayers = 4096;
inline constexpr int64_t kMaxWindow = 1 << 24;  // tokens
inline constexpr double kMaxScale = 1e6;        // of logits and softmax

}  // namespace ovq::model
