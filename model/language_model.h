// A decoder-only language model composed from its config: embedding, layers, final norm and head.
//
// A newcomer may first read tests/model/plain_forward.cc, the same computation on one page.
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
#include "model/cache_policy.h"
#include "model/config.h"
#include "model/layer_parts.h"
#include "model/state_layout.h"

namespace ovq::model {

class Weights;

struct ModelOptions {
  std::optional<kernels::DType> compute_dtype;  // default: ModelConfig::default_dtype
  kernels::WeightType weights = kernels::WeightType::kAsComputed;
  kernels::DType state_dtype = kernels::DType::kF32;
  CachePolicy cache_policy = CachePolicies().front();  // read by Load alone
  StateLimits limits;
};

// State shared by the model variants of one folder: weights on the device and the files'
// fingerprint.
struct SharedWeights {
  std::string fingerprint;
  kernels::SharedProducts products;
  std::shared_ptr<const kernels::Buffer> embedding;
};

// Bytes of one token in a full KV cache, were every layer full attention with the config's heads:
// n_layers x num_key_value_heads x (head_dim + value_head_dim) elements of state_dtype. 0 if the
// config names no heads, which models without attention layers need not.
size_t FullKvBytesPerToken(const ModelConfig& config, kernels::DType state_dtype);

// Computes the layout of a session's state from the config alone; it equals layout() of the loaded
// model. page_bytes: see StateLayout. InvalidArgument names the field; states larger than
// StateLayout::kMostBytes are refused.
absl::StatusOr<StateLayout> PlanStateLayout(const ModelConfig& config, kernels::DType state_dtype,
                                            const StateLimits& limits, kernels::Device device,
                                            size_t page_bytes);

struct DecoderLayer {
  float keep = 1, embedding = 0;  // block lambdas: x = keep x + embedding x0
  Norm input_norm, post_norm;     // post_norm is applied to the mixer's output
  std::unique_ptr<kernels::SequenceMixer> mixer;
  FeedForward feed_forward;
  int feed_forward_state = -1;  // index of its state in the layout; -1: none
  bool gives_first_values = false;
};

// Immutable after Load. Forward is const and runs on any thread that has a context of its own.
class LanguageModel {
 public:
  // Errors: NotFound, InvalidArgument, DataLoss; each names the file and field or tensor.
  static absl::StatusOr<std::unique_ptr<LanguageModel>> Load(const std::string& folder,
                                                             const ModelOptions& options,
                                                             kernels::DeviceContext& context);
  // Loads a model for each policy, or for each config that LoadConfig read from the folder; they
  // share their large weights. Errors as those of Load.
  static absl::StatusOr<std::vector<std::unique_ptr<LanguageModel>>> LoadEach(
      const std::string& folder, const ModelOptions& options, std::span<const CachePolicy> policies,
      kernels::DeviceContext& context);
  static absl::StatusOr<std::vector<std::unique_ptr<LanguageModel>>> LoadEach(
      const std::string& folder, const ModelOptions& options, std::vector<ModelConfig> configs,
      kernels::DeviceContext& context);

  // weight_count() of a loaded model with products of these types, by the config alone, which has
  // no problems.
  static kernels::WeightCount CountWeights(const ModelConfig& config, kernels::ProductTypes types);
  // Checks names, shapes and types of the tensors that Load would read. OK, or all tensors that are
  // missing, have another shape or type, or are unused (SplitProblems). The config may have
  // problems: invalid layers are left out, and if there are any, unused tensors are not reported.
  static absl::Status Check(const ModelConfig& config, Weights& weights);

  const ModelConfig& config() const { return config_; }
  const StateLayout& layout() const { return *layout_; }
  kernels::DType compute_dtype() const { return compute_dtype_; }
  kernels::WeightType weights() const { return weights_; }
  kernels::DType state_dtype() const { return state_dtype_; }
  const std::string& fingerprint() const { return fingerprint_; }  // hex SHA-256
  int64_t most_tokens() const { return most_tokens_; }             // that a session can come to
  int64_t parameters() const { return parameters_; }
  // Leaves out the experts that a token does not choose.
  int64_t active_parameters() const { return active_parameters_; }
  // Without the embedding's table, of which a token reads a row.
  const kernels::WeightCount& weight_count() const { return weight_count_; }
  size_t full_kv_bytes_per_token() const { return FullKvBytesPerToken(config_, state_dtype_); }

  // Runs the batch and returns the logits [n_logits, vocab], F32, of batch.logits_indices, in their
  // order. They are in device memory and live as long as `scope`; padding may follow them. Advances
  // the state of every sequence by its tokens. `context` is the one the model was loaded with or
  // another of the same device.
  kernels::TensorView Forward(const Batch& batch, kernels::DeviceContext& context,
                              kernels::ScratchScope& scope) const;

  // Undoing of the last tokens of a batch, over all layers (SequenceMixer): the bytes of a session
  // that these tokens may change, and whether each token changes bytes of its own. The tokens end
  // before the next StateLayout::BoundaryAfter.
  std::vector<kernels::StateExtent> UndoExtents(const kernels::TokenRange& tokens) const;
  bool CanUndoSuffix(const kernels::TokenRange& tokens) const;

 private:
  LanguageModel();
  absl::Status LoadAll(ModelConfig config, Weights& weights, const ModelOptions& options,
                       kernels::DeviceContext& context, SharedWeights& shared);
  // Only checks and counts weights, without loading them, if `so_far` is an error; only counts them
  // if they are null, too.
  absl::Status LoadParts(Weights* weights, kernels::DeviceContext& context, SharedWeights& shared,
                         const absl::Status& so_far = absl::OkStatus());
  void LoadLayer(int i, kernels::WeightReader& reader, kernels::DeviceContext& context);
  // Embedding, layers, norm and head. The launches depend on the shape of the batch alone, so that
  // they can be recorded.
  void Run(const kernels::StagedBatch& staged, kernels::DeviceContext& context,
           kernels::TensorView logits) const;
  // Computes the logits of h [n_tokens, d_model]; x is scratch of the compute dtype.
  void RunHead(const kernels::StagedBatch& staged, kernels::DeviceContext& context,
               kernels::TensorView h, kernels::TensorView x, kernels::TensorView logits) const;
  // Applies layer i to activations.h; the other activations are scratch.
  void RunLayer(int i, const kernels::StagedBatch& staged, kernels::DeviceContext& context,
                kernels::BatchTensors& tensors, const LayerActivations& activations) const;

  const int64_t id_;  // unique in the process: key of recorded batches
  ModelConfig config_;
  std::unique_ptr<StateLayout> layout_;
  kernels::DType compute_dtype_ = kernels::DType::kF32;
  kernels::WeightType weights_ = kernels::WeightType::kAsComputed;
  kernels::DType state_dtype_ = kernels::DType::kF32;
  std::string fingerprint_;
  int64_t most_tokens_ = INT64_MAX;
  int64_t parameters_ = 0, active_parameters_ = 0;
  kernels::WeightCount weight_count_;
  std::vector<DecoderLayer> layers_;
  std::shared_ptr<const kernels::Buffer> embedding_storage_;
  kernels::TensorView embedding_;  // [vocab, d_model], the checkpoint's dtype
  Norm embedding_norm_;
  std::optional<kernels::RopeTable> sinusoids_;
  float sinusoid_scale_ = 0;
  bool keeps_embedding_ = false;     // some layer reads x0, the (normed) embedding
  std::vector<float> skip_weights_;  // [n_layers / 2] with skip connections
  Norm final_norm_;
  kernels::Linear lm_head_;       // [vocab, d_model]
  kernels::Buffer lm_head_bias_;  // [vocab] float, if the head has one
};

}  // namespace ovq::model
