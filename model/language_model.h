// A decoder-only language model composed from its config: embed, layers, norm, head.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/mixers/mixer.h"
#include "kernels/ops/ops.h"
#include "model/batch.h"
#include "model/config.h"
#include "model/feed_forward.h"
#include "model/norm.h"
#include "model/state_layout.h"

namespace ovq {

class Weights;

struct ModelOptions {
  std::optional<DType> compute_dtype;  // default: BF16 for BF16 checkpoints, else F32
  WeightType weights = WeightType::kAsComputed;
  DType state_dtype = DType::kF32;
  CachePolicy cache_policy = CachePolicy::kAsTrained;  // of Load
  StateLimits limits;
};

// What models of one folder share: weights on the device, and the sum over those in the files.
struct SharedWeights {
  std::string fingerprint;
  SharedProducts products;
  std::shared_ptr<const Buffer> embedding;
};

// What one token would take in a full KV cache, were every layer full attention with the config's
// heads: n_layers x num_key_value_heads (head_dim + value_head_dim) elements of the state dtype.
// 0 if the config names no heads, as it need not without attention layers.
size_t FullKvBytesPerToken(const ModelConfig& config, DType state_dtype);

// The layout of a session's state, from the config alone: the same as layout() of the model once it
// is loaded. page_bytes: see StateLayout. InvalidArgument names the field, also for a state whose
// size no machine has (StateLayout::kMostBytes).
absl::StatusOr<StateLayout> PlanStateLayout(const ModelConfig& config, DType state_dtype,
                                            const StateLimits& limits, Device device,
                                            size_t page_bytes);

struct DecoderLayer {
  float keep = 1, embedding = 0;  // block lambdas: x = keep x + embedding x0
  Norm input_norm, post_norm;     // the second of what the mixer gives
  std::unique_ptr<SequenceMixer> mixer;
  FeedForward feed_forward;
  int feed_forward_state = -1;  // its layer in the layout, if it has a state
  bool gives_first_values = false;
};

// Immutable after Load; Forward is const and may run on any thread with its own context.
class LanguageModel {
 public:
  // Errors: NotFound, InvalidArgument, DataLoss; each names the file and field or tensor.
  static absl::StatusOr<std::unique_ptr<LanguageModel>> Load(const std::string& folder,
                                                             const ModelOptions& options,
                                                             DeviceContext& context);
  // A model for each of the policies, which share their large weights. Errors as those of Load.
  static absl::StatusOr<std::vector<std::unique_ptr<LanguageModel>>> LoadEach(
      const std::string& folder, const ModelOptions& options, std::span<const CachePolicy> policies,
      DeviceContext& context);

  // Whether Load would find the weights it takes: OK, or all tensors that are missing or have
  // another shape or type, and those that nobody takes (SplitProblems). Looks at names, shapes and
  // types alone. The config may have problems: layers that are wrong are left out, and with one of
  // them, what nobody takes.
  static absl::Status Check(const ModelConfig& config, Weights& weights);

  const std::string& name() const { return config_.name; }
  const ModelConfig& config() const { return config_; }
  const StateLayout& layout() const { return *layout_; }
  DType compute_dtype() const { return compute_dtype_; }
  WeightType weights() const { return weights_; }
  DType state_dtype() const { return state_dtype_; }
  const std::string& fingerprint() const { return fingerprint_; }  // hex SHA-256
  int64_t parameters() const { return parameters_; }
  size_t weight_bytes() const { return weight_bytes_; }  // read by one decode step
  size_t full_kv_bytes_per_token() const { return full_kv_bytes_per_token_; }

  // Logits [n_logits, vocab] F32 of batch.logits_indices, in their order, in the device's memory
  // and as long as scope; rows of padding may follow them. Advances every sequence's state by its
  // rows. The context it was loaded with, or another of the same device.
  TensorView Forward(const Batch& batch, DeviceContext& context, ScratchScope& scope) const;

  // Of all layers, of tokens that end before the next StateLayout::BoundaryAfter: the bytes of a
  // session that they may change, and whether each changes bytes of its own (SequenceMixer).
  std::vector<StateExtent> UndoExtents(const TokenRange& tokens) const;
  bool CanUndoSuffix(const TokenRange& tokens) const;

 private:
  LanguageModel();
  absl::Status LoadAll(ModelConfig config, Weights& weights, const ModelOptions& options,
                       DeviceContext& context, SharedWeights& shared);
  // With an error so far, weights are only checked.
  absl::Status LoadParts(Weights& weights, DeviceContext& context, SharedWeights& shared,
                         const absl::Status& so_far = absl::OkStatus());
  // Embedding, final norm and head; gives the embedding, not yet on the device.
  TensorView LoadEnds(WeightReader& reader, DeviceContext& context);
  void LoadLayer(int i, WeightReader& reader, DeviceContext& context);
  // Null, and the reader's status says why.
  std::unique_ptr<SequenceMixer> MakeMixer(int i, WeightReader& weights,
                                           DeviceContext& context) const;
  // IsFasterOnOneThread of a step.
  bool IsSmallBatch(const BatchSequences& seqs, const DeviceContext& context) const;
  // Embed, layers, norm, head: launches that depend on the shape of the step alone.
  void Run(const StagedBatch& staged, DeviceContext& context, TensorView logits) const;
  // h [n_tokens, d_model]: the residual stream as the first layer meets it.
  void EmbedTokens(const StagedBatch& staged, DeviceContext& context, TensorView h) const;
  // h [n_tokens, d_model] to logits; x is scratch of the compute dtype.
  void RunHead(const StagedBatch& staged, DeviceContext& context, TensorView h, TensorView x,
               TensorView logits) const;
  // What layer i does to activations.h; the others are scratch.
  void RunLayer(int i, const StagedBatch& staged, DeviceContext& context, BatchTensors& tensors,
                const LayerActivations& activations) const;

  const int64_t id_;  // of this object among all of the process: recorded steps are kept under it
  ModelConfig config_;
  std::unique_ptr<StateLayout> layout_;
  DType compute_dtype_ = DType::kF32;
  WeightType weights_ = WeightType::kAsComputed;
  DType state_dtype_ = DType::kF32;
  std::string fingerprint_;
  int64_t parameters_ = 0;
  size_t weight_bytes_ = 0;
  size_t full_kv_bytes_per_token_ = 0;
  std::vector<DecoderLayer> layers_;
  std::shared_ptr<const Buffer> embedding_storage_;
  TensorView embedding_;  // [vocab, d_model], the checkpoint's dtype
  Norm embedding_norm_;
  std::optional<RopeTable> sinusoids_;
  float sinusoid_scale_ = 0;
  bool keeps_embedding_ = false;     // some layer reads x0, the normed embedding
  std::vector<float> skip_weights_;  // [n_layers / 2] with skip connections
  Norm final_norm_;
  Linear lm_head_;       // [vocab, d_model]
  Buffer lm_head_bias_;  // [vocab] float, if the head has one
};

}  // namespace ovq
