#include "model/language_model.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <deque>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/problems.h"
#include "base/sha256.h"
#include "base/status_macros.h"
#include "kernels/common/device_memory.h"
#include "kernels/mixers/common/attention.h"
#include "kernels/mixers/common/slots.h"
#include "kernels/mixers/common/token_shift.h"
#include "model/families/family.h"
#include "model/load_config.h"
#include "model/weights.h"

namespace ovq::model {
namespace {

constexpr char kEmbedding[] = "embedding";  // name of x0 among a batch's tensors

absl::Status CheckSize(const StateLayout& layout) {
  if (layout.virtual_bytes() <= StateLayout::kMostBytes) return absl::OkStatus();
  const StateLimits& limits = layout.limits();
  return absl::InvalidArgumentError(
      absl::StrCat("num_hidden_layers, and the heads, dimensions, windows and centroids of layers: "
                   "a session of ",
                   limits.max_slot_cap, " max_centroids and ", limits.max_unbounded_tokens,
                   " tokens would take more than ", StateLayout::kMostBytes, " bytes"));
}

// The states of all mixers, then of those feed-forwards that have one, from the config alone.
absl::StatusOr<std::vector<kernels::MixerState>> LayerStates(const ModelConfig& config,
                                                             kernels::DType kv_dtype,
                                                             kernels::Device device) {
  std::vector<kernels::MixerState> states;
  for (int i = 0; i < config.n_layers; ++i) {
    ASSIGN_OR_RETURN(
        kernels::MixerState state,
        kernels::FindMixer(config.layers[i].type)->state(config.state_spec(i, kv_dtype, device)));
    state.name = config.layers[i].type;
    states.push_back(std::move(state));
  }
  for (const LayerSpec& layer : config.layers) {
    if (layer.feed_forward.token_shift)
      states.push_back(kernels::TokenShiftState(config.hidden_size));
  }
  return states;
}

// The most products of single experts that n tokens need in all layers.
int64_t ExpertCalls(const ModelConfig& config, int64_t n_tokens) {
  int64_t calls = 0;
  for (const LayerSpec& layer : config.layers) {
    if (!layer.feed_forward.mixture) continue;
    const kernels::RouterSpec& router = layer.feed_forward.mixture->router;
    calls += 2 * std::min<int64_t>(router.n_experts, router.n_chosen * n_tokens);
  }
  return calls;
}

absl::Status CheckOnlyMarker() { return absl::CancelledError("weights are only checked"); }

// Adds the tensors that are made at load.
absl::Status AddMade(const ModelConfig& config, Weights& weights) {
  absl::Status problems = AddQuantized(config.quantization, weights);
  if (problems.ok() && config.family->prepare != nullptr) {
    AddProblems(problems, config.family->prepare(config, weights));
  }
  return problems;
}

}  // namespace

size_t FullKvBytesPerToken(const ModelConfig& config, kernels::DType state_dtype) {
  for (const LayerSpec& layer : config.layers) {
    const kernels::AttentionConfig* const attention = layer.mixer->attention();
    if (attention == nullptr) continue;
    const kernels::AttentionShape& shape =
        attention->shape;       // the same in all layers that have one
    const size_t block_bytes =  // for 64 tokens of all layers
        static_cast<size_t>(config.n_layers) * static_cast<size_t>(shape.n_kv_heads) *
        (kernels::BlockBytes(state_dtype, shape.head_dim) +
         kernels::BlockBytes(state_dtype, shape.value_head_dim));
    return block_bytes / kernels::kBlockSlots;
  }
  return 0;
}

absl::StatusOr<StateLayout> PlanStateLayout(const ModelConfig& config, kernels::DType state_dtype,
                                            const StateLimits& limits, kernels::Device device,
                                            size_t page_bytes) {
  ASSIGN_OR_RETURN(std::vector<kernels::MixerState> states,
                   LayerStates(config, state_dtype, device));
  StateLayout layout(std::move(states), limits, page_bytes);
  RETURN_IF_ERROR(CheckSize(layout));
  return layout;
}

LanguageModel::LanguageModel()
    : id_([] {
        static std::atomic<int64_t> next{0};
        return next++;
      }()) {}

absl::StatusOr<std::unique_ptr<LanguageModel>> LanguageModel::Load(
    const std::string& folder, const ModelOptions& options, kernels::DeviceContext& context) {
  ASSIGN_OR_RETURN(auto models, LoadEach(folder, options, {&options.cache_policy, 1}, context));
  return std::move(models.front());
}

absl::StatusOr<std::vector<std::unique_ptr<LanguageModel>>> LanguageModel::LoadEach(
    const std::string& folder, const ModelOptions& options, std::span<const CachePolicy> policies,
    kernels::DeviceContext& context) {
  std::vector<ModelConfig> configs;
  for (const CachePolicy& policy : policies) {
    ASSIGN_OR_RETURN(ModelConfig config, LoadConfig(folder, policy));
    configs.push_back(std::move(config));
  }
  return LoadEach(folder, options, std::move(configs), context);
}

absl::StatusOr<std::vector<std::unique_ptr<LanguageModel>>> LanguageModel::LoadEach(
    const std::string& folder, const ModelOptions& options, std::vector<ModelConfig> configs,
    kernels::DeviceContext& context) {
  Weights weights;
  RETURN_IF_ERROR(Weights::Open(folder, weights));
  SharedWeights shared;
  std::vector<std::unique_ptr<LanguageModel>> models;
  for (ModelConfig& config : configs) {
    models.emplace_back(new LanguageModel);
    absl::Status status;
    status.Update(kernels::CatchDeviceErrors([&] {
      status = models.back()->LoadAll(std::move(config), weights, options, context, shared);
    }));
    // If a file changed during the load, its problems say nothing of either version.
    RETURN_IF_ERROR(weights.CheckWhole());
    if (!status.ok()) return InContext(folder, status);
  }
  return models;
}

absl::Status LanguageModel::LoadAll(ModelConfig config, Weights& weights,
                                    const ModelOptions& options, kernels::DeviceContext& context,
                                    SharedWeights& shared) {
  config_ = std::move(config);
  compute_dtype_ = options.compute_dtype.value_or(config_.default_dtype());
  weights_ = options.weights;
  state_dtype_ = options.state_dtype;
  weights.SetMadeDType(compute_dtype_);
  RETURN_IF_ERROR(AddMade(config_, weights));
  ASSIGN_OR_RETURN(std::vector<kernels::MixerState> states,
                   LayerStates(config_, options.state_dtype, context.device()));
  const bool is_bounded = std::ranges::all_of(states, [](const kernels::MixerState& state) {
    return !state.growth.exists() || state.growth.capped();
  });
  if (!is_bounded) most_tokens_ = options.limits.max_unbounded_tokens;
  absl::Status status = LoadParts(&weights, context, shared);
  if (!status.ok()) return status;
  for (int i = 0; i < config_.n_layers; ++i) {
    states[i] = layers_[i].mixer->state();
    states[i].name = config_.layers[i].type;
  }
  layout_ = std::make_unique<StateLayout>(std::move(states), options.limits,
                                          kernels::StatePageBytes(context));
  if (status = CheckSize(*layout_); !status.ok()) return InContext("config.json", status);

  Sha256 hash;
  if (shared.fingerprint.empty()) shared.fingerprint = weights.Fingerprint();
  hash.AddText(shared.fingerprint);
  hash.AddText(config_.canonical);
  if (most_tokens_ <= config_.short_rope_tokens()) hash.AddText(" short RoPE");
  fingerprint_ = hash.Hex();
  weights.RemoveUnused(config_.family->is_unused);
  parameters_ = weights.elements();
  active_parameters_ = parameters_ - static_cast<int64_t>(weight_count_.idle_parameters);
  return absl::OkStatus();
}

kernels::WeightCount LanguageModel::CountWeights(const ModelConfig& config,
                                                 kernels::ProductTypes types) {
  const auto context = kernels::DeviceContext::Make(kernels::Device::kCpu, 1);
  LanguageModel model;
  model.config_ = config;
  model.compute_dtype_ = types.compute;
  model.weights_ = types.weights;
  SharedWeights shared;
  model.LoadParts(nullptr, **context, shared, CheckOnlyMarker()).IgnoreError();
  return model.weight_count_;
}

absl::Status LanguageModel::Check(const ModelConfig& config, Weights& weights) {
  if (std::ranges::all_of(config.layers, &LayerSpec::is_wrong)) return absl::OkStatus();
  ASSIGN_OR_RETURN(const std::unique_ptr<kernels::DeviceContext> context,
                   kernels::DeviceContext::Make(kernels::Device::kCpu, 1));
  LanguageModel model;
  model.config_ = config;
  SharedWeights shared;
  absl::Status problems = AddMade(config, weights);
  for (const absl::Status& problem :
       SplitProblems(model.LoadParts(&weights, *context, shared, CheckOnlyMarker()))) {
    if (problem != CheckOnlyMarker()) AddProblems(problems, problem);
  }
  AddProblems(problems, weights.CheckWhole());
  return problems;
}

void LanguageModel::LoadLayer(int i, kernels::WeightReader& reader,
                              kernels::DeviceContext& context) {
  DecoderLayer& layer = layers_.emplace_back();
  layer.gives_first_values = config_.gives_first_values(i);
  if (config_.block_lambdas) {
    const std::vector<float> lambdas = reader.HostFloats("lambdas", {2});
    if (!lambdas.empty()) layer.keep = lambdas[0], layer.embedding = lambdas[1];
  }
  const LayerSpec& spec = config_.layers[i];
  const int64_t d_model = config_.hidden_size;
  const bool has_mixer = spec.type != kernels::kNoMixer;
  if (spec.norm_before && has_mixer)
    layer.input_norm = Norm(reader, "input_layernorm", config_.norm, d_model);
  if (spec.norm_after) {
    layer.post_norm = Norm(reader, "post_mixer_layernorm", config_.post_norm, d_model);
  }
  auto mixer = kernels::FindMixer(spec.type)->make(
      {.layer = i,
       .state = config_.state_spec(i, state_dtype_, context.device()),
       .weights = reader,
       .compute_dtype = compute_dtype_,
       .residual_scale = spec.norm_after ? 1 : config_.residual_scale,
       .context = context,
       .most_tokens = most_tokens_});
  reader.Update(mixer.status());
  if (mixer.ok()) layer.mixer = *std::move(mixer);
  layer.feed_forward = FeedForward(reader, config_, spec);
}

absl::Status LanguageModel::LoadParts(Weights* weights, kernels::DeviceContext& context,
                                      SharedWeights& shared, const absl::Status& so_far) {
  using Copies = std::deque<std::vector<std::byte>>;  // of tensors, until they are on the device
  const kernels::ProductTypes types(compute_dtype_, weights_);
  const auto source_into = [&](Copies& copies) -> kernels::WeightSource {
    if (weights == nullptr) return nullptr;
    return [&](const std::string& name, const kernels::Shape& shape) {
      return GetTensor(config_, name, shape, *weights, copies);
    };
  };
  Copies copies;
  const kernels::WeightSource source = source_into(copies);
  kernels::WeightReader reader(source, types, context, "", so_far, &shared.products);
  const int64_t d_model = config_.hidden_size, vocab = config_.vocab_size;
  absl::StatusOr<kernels::TensorView> table = kernels::TensorView();
  if (source) table = source("model.embed_tokens.weight", {vocab, d_model});
  reader.Update(table.status());
  if (reader.status().ok() && shared.embedding == nullptr) {
    shared.embedding =
        std::make_shared<const kernels::Buffer>(context.Upload(table->data, table->bytes()));
  }
  embedding_norm_ = Norm(reader, "model.embed_norm", config_.embedding_norm, d_model);
  if (config_.sinusoid_base > 0) {
    const std::vector<float> scale = reader.HostFloats("model.embed_positions.scale", {});
    if (!scale.empty()) sinusoid_scale_ = scale[0];
    sinusoids_.emplace(context, kernels::RopeSpec{.theta = config_.sinusoid_base,
                                                  .dims = static_cast<int>(d_model)});
  }
  final_norm_ = Norm(reader, "model.norm", config_.final_norm, d_model);
  const char* head = config_.tie_word_embeddings ? "model.embed_tokens.weight" : "lm_head.weight";
  lm_head_ = reader.Product({{head, vocab}}, d_model);
  if (config_.lm_head_bias) lm_head_bias_ = reader.Floats("lm_head.bias", {vocab});
  if (config_.skip_connections) {
    skip_weights_ = reader.HostFloats("model.skip_weights", {config_.n_layers / 2});
  }
  int state = config_.n_layers;
  for (int i = 0; i < config_.n_layers; ++i) {
    if (config_.layers[i].is_wrong) continue;
    Copies copies_of_layer;
    const kernels::WeightSource source_of_layer = source_into(copies_of_layer);
    kernels::WeightReader of_layer(source_of_layer, types, context,
                                   absl::StrCat("model.layers.", i, "."), reader.status(),
                                   &shared.products);
    LoadLayer(i, of_layer, context);
    reader.Update(of_layer.status());
    weight_count_.Add(of_layer.count());
    if (weights != nullptr) weights->FreeMade();
    if (layers_.back().feed_forward.has_state()) layers_.back().feed_forward_state = state++;
    keeps_embedding_ |= config_.block_lambdas || layers_.back().gives_first_values;
  }
  if (weights != nullptr && std::ranges::none_of(config_.layers, &LayerSpec::is_wrong)) {
    reader.Update(weights->CheckAllUsed(config_.family->is_unused));
  }
  weight_count_.Add(reader.count());
  if (!reader.status().ok()) return reader.status();

  embedding_storage_ = shared.embedding;
  embedding_ = {embedding_storage_->as<void>(), table->dtype, table->shape};
  return absl::OkStatus();
}

kernels::TensorView LanguageModel::Forward(const Batch& batch, kernels::DeviceContext& context,
                                           kernels::ScratchScope& scope) const {
  const bool replayed = context.device() == kernels::Device::kCuda && batch.is_decode();
  const Batch* input = &batch;
  Batch padded_batch;
  if (replayed) {
    padded_batch = PadBatch(batch);
    input = &padded_batch;
  }
  kernels::BatchSequences seqs = input->seqs();
  if (replayed) RoundBounds(seqs);
  const kernels::StagedBatch staged = kernels::StageBatch(context, seqs, layout_->growths(),
                                                          input->token_ids, input->logits_indices);
  BatchWork work = {.bytes = weight_count_.ReadBy(seqs.n_tokens()),
                    .products = static_cast<double>(seqs.n_tokens() * active_parameters_),
                    .n_layers = config_.n_layers,
                    .n_expert_calls = ExpertCalls(config_, seqs.n_tokens()),
                    .n_answers = seqs.n_seqs()};
  for (int s = 0; s < seqs.n_seqs(); ++s) {
    work.bytes += static_cast<double>(layout_->bytes_at(seqs.start_pos[s], seqs.slot_cap[s]));
  }
  const kernels::SingleThreadScope alone(
      context,
      context.device() == kernels::Device::kCpu && IsFasterOnOneThread(work, context.n_threads()));
  const kernels::TensorView logits =
      scope.Tensor(kernels::DType::kF32,
                   {static_cast<int64_t>(staged.logits_indices.size()), config_.vocab_size});
  if (!replayed) {
    Run(staged, context, logits);
  } else {
    const auto address = static_cast<int64_t>(reinterpret_cast<intptr_t>(logits.data));
    context.RunCaptured({id_, seqs.n_seqs(), seqs.end_bound, seqs.slot_cap_bound, address},
                        [&] { Run(staged, context, logits); });
  }
  return logits;
}

std::vector<kernels::StateExtent> LanguageModel::UndoExtents(
    const kernels::TokenRange& tokens) const {
  std::vector<kernels::StateExtent> all;
  for (int i = 0; i < config_.n_layers; ++i) {
    const auto of_layer = layers_[i].mixer->UndoExtents(layout_->layer(i), tokens);
    all.insert(all.end(), of_layer.begin(), of_layer.end());
    const int state = layers_[i].feed_forward_state;
    if (state < 0) continue;
    all.push_back({layout_->layer(state).fixed_offset, layout_->mixers()[state].fixed.bytes()});
  }
  return all;
}

bool LanguageModel::CanUndoSuffix(const kernels::TokenRange& tokens) const {
  return std::ranges::all_of(layers_, [&](const DecoderLayer& layer) {
    return layer.feed_forward_state < 0 && layer.mixer->CanUndoSuffix(tokens);
  });
}

void LanguageModel::Run(const kernels::StagedBatch& staged, kernels::DeviceContext& context,
                        kernels::TensorView logits) const {
  const int64_t n_tokens = staged.seqs.n_tokens();
  kernels::ScratchScope scope(context);
  const kernels::Shape rows = {n_tokens, config_.hidden_size};
  LayerActivations between = {.h = scope.Tensor(kernels::DType::kF32, rows),
                              .x = scope.Tensor(compute_dtype_, rows),
                              .added = {}};
  if (std::ranges::any_of(config_.layers, &LayerSpec::norm_after)) {
    between.added = scope.Tensor(kernels::DType::kF32, rows);
  }
  const kernels::TensorView& h = between.h;
  kernels::BatchTensors tensors(scope);
  kernels::Embed(context, embedding_, staged.token_ids, h);
  if (config_.embedding_scale != 1) kernels::AddBias(context, h, {}, config_.embedding_scale);
  if (embedding_norm_.exists()) embedding_norm_.Apply(context, h, h);
  if (sinusoids_) {
    kernels::AddSinusoids(context, *sinusoids_,
                          {staged.seqs.device.positions, static_cast<size_t>(n_tokens)},
                          sinusoid_scale_, h);
  }
  if (keeps_embedding_)
    kernels::AddScaled(context, tensors.Put(kEmbedding, kernels::DType::kF32, rows), 0, h, 1);

  // The outputs of the first half of the layers are added before those of the second half, the last
  // output first.
  const int n_layers = config_.n_layers, half = n_layers / 2;
  std::vector<kernels::TensorView> skipped;
  for (int i = 0; i < n_layers; ++i) {
    if (config_.skip_connections && i >= half) {
      kernels::AddScaled(context, h, 1, skipped[n_layers - 1 - i], skip_weights_[i - half]);
    }
    RunLayer(i, staged, context, tensors, between);
    if (config_.skip_connections && i < half) {
      skipped.push_back(scope.Tensor(kernels::DType::kF32, rows));
      kernels::AddScaled(context, skipped.back(), 0, h, 1);
    }
  }
  if (!staged.logits_indices.empty()) RunHead(staged, context, h, between.x, logits);
}

void LanguageModel::RunHead(const kernels::StagedBatch& staged, kernels::DeviceContext& context,
                            kernels::TensorView h, kernels::TensorView x,
                            kernels::TensorView logits) const {
  const kernels::TensorView last = kernels::Rows(x, 0, logits.shape[0]);
  lm_head_.Apply(context, final_norm_.ForProducts(context, h, last, staged.logits_indices), logits);
  if (config_.lm_head_bias || config_.logit_scale != 1) {
    const kernels::TensorView bias = {
        lm_head_bias_.as<void>(), kernels::DType::kF32, {config_.vocab_size}};
    kernels::AddBias(context, logits, bias, config_.logit_scale);
  }
  if (config_.logit_softcap > 0) kernels::SoftCap(context, logits, config_.logit_softcap);
}

void LanguageModel::RunLayer(int i, const kernels::StagedBatch& staged,
                             kernels::DeviceContext& context, kernels::BatchTensors& tensors,
                             const LayerActivations& activations) const {
  const DecoderLayer& layer = layers_[i];
  const kernels::TensorView &h = activations.h, &x = activations.x;
  const kernels::TensorView embedding = tensors.Get(kEmbedding);
  if (config_.block_lambdas) kernels::AddScaled(context, h, layer.keep, embedding, layer.embedding);
  if (layer.gives_first_values) {
    layer.input_norm.Apply(context, embedding,
                           tensors.Put(kernels::FirstValuesInput(i), compute_dtype_, x.shape));
  }
  const kernels::ProductRows rows = layer.input_norm.ForProducts(context, h, x);
  const bool adds = !layer.post_norm.exists();
  layer.mixer->Forward({context, staged.seqs, layout_->layer(i), tensors, adds}, rows,
                       adds ? h : activations.added);
  if (!adds) activations.AddNormed(context, layer.post_norm, config_.residual_scale);
  const int state = layer.feed_forward_state;
  layer.feed_forward.Forward(context, staged.seqs, state < 0 ? nullptr : &layout_->layer(state),
                             activations);
}

}  // namespace ovq::model
