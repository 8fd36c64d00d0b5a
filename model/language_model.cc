#include "model/language_model.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstring>
#include <set>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/sha256.h"
#include "kernels/mixers/common/attention.h"
#include "model/weights.h"

namespace ovq {
namespace {

TensorView ViewOf(const Buffer& norm) {
  return {norm.as<float>(), DType::kF32, {static_cast<int64_t>(norm.bytes() / sizeof(float))}};
}

TensorView Rows(TensorView x, int64_t begin, int64_t n) {
  const int64_t width = x.shape[1];
  std::byte* data = x.as<std::byte>() + static_cast<size_t>(begin * width) * DTypeBytes(x.dtype);
  return {data, x.dtype, {n, width}};
}

TensorView Matrix(ScratchScope& scope, DType dtype, int64_t rows, int64_t width) {
  const size_t bytes = static_cast<size_t>(rows * width) * DTypeBytes(dtype);
  return {scope.Allocate<std::byte>(bytes), dtype, {rows, width}};
}

// Every field that config.json holds has been read by someone; sections of layer types that the
// model does not use may stand there unread.
absl::Status CheckAllRead(const ModelConfig& config) {
  absl::Status status = config.model.CheckAllRead();
  for (const std::string& type : config.layer_types) {
    status.Update(config.section(FindMixer(type)->section).CheckAllRead());
  }
  return status;
}

absl::Status WithContext(const absl::Status& status, std::string_view context) {
  return absl::Status(status.code(), absl::StrCat(std::string(context), ": ", status.message()));
}

}  // namespace

size_t FullKvBytesPerToken(const ModelConfig& config, DType state_dtype) {
  AttrReader reader(config.model);
  const AttentionShape shape = ReadAttentionShape(reader);
  if (!reader.ok()) return 0;
  return static_cast<size_t>(int64_t{config.n_layers} * shape.n_kv_heads *
                             (shape.head_dim + shape.value_head_dim)) *
         DTypeBytes(state_dtype);
}

absl::StatusOr<StateLayout> PlanStateLayout(const ModelConfig& config, DType state_dtype,
                                            const StateLimits& limits, Device device,
                                            size_t page_bytes) {
  const absl::StatusOr<std::vector<MixerState>> states = LayerStates(config, state_dtype, device);
  if (!states.ok()) return states.status();
  return StateLayout(*states, limits, page_bytes);
}

namespace {

// Decode steps are recorded and replayed on CUDA, one recording for each size: few sizes, and
// little wasted on padding.
int PaddedSeqs(int n_seqs) {
  if (n_seqs <= 8) return static_cast<int>(std::bit_ceil(static_cast<unsigned>(n_seqs)));
  const int multiple = n_seqs <= 64 ? 8 : 32;
  return (n_seqs + multiple - 1) / multiple * multiple;
}

StepBatch Padded(const StepBatch& batch) {
  StepBatch padded = batch;
  const int32_t token = 0;  // any: nobody reads these rows
  for (int i = batch.n_seqs(); i < PaddedSeqs(batch.n_seqs()); ++i) {
    padded.Add({&token, 1}, /*start=*/0, /*cap=*/1, /*base=*/nullptr, /*n_logits=*/1);
  }
  return padded;
}

// Bounds that many steps share: powers of two.
void RoundBounds(StepSeqs& seqs) {
  uint64_t end = 1024, cap = 64;
  for (int s = 0; s < seqs.n_seqs(); ++s) {
    end = std::max(end, static_cast<uint64_t>(seqs.start_pos[s]) + 1);
    cap = std::max(cap, static_cast<uint64_t>(seqs.slot_cap[s]));
  }
  seqs.end_bound = static_cast<int64_t>(std::bit_ceil(end));
  seqs.slot_cap_bound = static_cast<int32_t>(std::bit_ceil(cap));
}

// h += down(silu(gate(r)) * up(r)), r = rmsnorm(h), in scratch rows of `x`.
void FeedForward(const DecoderLayer& layer, float eps, DeviceContext& context, TensorView h,
                 TensorView x) {
  if (layer.d_ff == 0) return;
  ScratchScope scope(context);
  const int64_t n = h.shape[0];
  const TensorView gate_up = Matrix(scope, DType::kF32, n, 2 * layer.d_ff);
  const TensorView inner = Matrix(scope, x.dtype, n, layer.d_ff);
  RmsNorm(context, h, ViewOf(layer.feed_forward_norm), eps, x);
  layer.gate_up.Apply(context, x, gate_up);
  SwiGlu(context, gate_up, inner);
  layer.down.Apply(context, inner, h, /*accumulate=*/true);
}

}  // namespace

LanguageModel::LanguageModel()
    : id_([] {
        static std::atomic<int64_t> next{0};
        return next++;
      }()) {}

absl::StatusOr<std::unique_ptr<LanguageModel>> LanguageModel::Load(const std::string& folder,
                                                                   const ModelOptions& options,
                                                                   DeviceContext& context) {
  absl::StatusOr<ModelConfig> config = LoadConfig(folder);
  if (!config.ok()) return config.status();
  absl::StatusOr<Weights> weights = Weights::Open(folder);
  if (!weights.ok()) return weights.status();
  std::unique_ptr<LanguageModel> model(new LanguageModel);
  model->config_ = *std::move(config);
  model->compute_dtype_ = options.compute_dtype.value_or(
      model->config_.weights_dtype == DType::kBF16 ? DType::kBF16 : DType::kF32);
  model->state_dtype_ = options.state_dtype;
  absl::Status status = model->LoadParts(*weights, context);
  if (!status.ok()) return WithContext(status, folder);
  std::vector<MixerState> states;
  for (const DecoderLayer& layer : model->layers_) states.push_back(layer.mixer->state());
  model->layout_ = std::make_unique<StateLayout>(states, options.limits, StatePageBytes(context));

  Sha256 hash;
  hash.AddText(weights->Fingerprint());
  hash.AddText(model->config_.canonical);
  model->fingerprint_ = hash.Hex();
  model->parameters_ = weights->elements();
  model->full_kv_bytes_per_token_ = FullKvBytesPerToken(model->config_, options.state_dtype);
  return model;
}

std::unique_ptr<SequenceMixer> LanguageModel::MakeMixer(int i, WeightReader& weights,
                                                        DeviceContext& context) const {
  absl::StatusOr<std::unique_ptr<SequenceMixer>> mixer =
      FindMixer(config_.layer_types[i])
          ->make({.layer = i,
                  .state = config_.state_spec(i, state_dtype_, context.device()),
                  .weights = weights,
                  .compute_dtype = compute_dtype_,
                  .context = context});
  weights.Update(mixer.status());
  return mixer.ok() ? *std::move(mixer) : nullptr;
}

absl::Status LanguageModel::LoadLayer(int i, const WeightSource& source, DeviceContext& context) {
  WeightReader reader(source, compute_dtype_, context, absl::StrCat("model.layers.", i, "."));
  const int64_t d_model = config_.hidden_size;
  DecoderLayer& layer = layers_.emplace_back();
  layer.d_ff = config_.intermediate_size[i];
  layer.input_norm = reader.Floats("input_layernorm.weight", {d_model});
  layer.mixer = MakeMixer(i, reader, context);
  if (layer.d_ff == 0) return reader.status();
  layer.feed_forward_norm = reader.Floats("post_attention_layernorm.weight", {d_model});
  layer.gate_up = reader.Product(
      {{"mlp.gate_proj.weight", layer.d_ff}, {"mlp.up_proj.weight", layer.d_ff}}, d_model);
  layer.down = reader.Product({{"mlp.down_proj.weight", d_model}}, layer.d_ff);
  return reader.status();
}

absl::Status LanguageModel::LoadParts(Weights& weights, DeviceContext& context) {
  const WeightSource source = [&](const std::string& name, const Shape& shape) {
    return weights.Take(name, shape);
  };
  WeightReader reader(source, compute_dtype_, context);
  const TensorView table =
      reader.Take("model.embed_tokens.weight", {config_.vocab_size, config_.hidden_size});
  for (int i = 0; i < config_.n_layers && reader.status().ok(); ++i) {
    reader.Update(LoadLayer(i, source, context));
  }
  final_norm_ = reader.Floats("model.norm.weight", {config_.hidden_size});
  const char* head = config_.tie_word_embeddings ? "model.embed_tokens.weight" : "lm_head.weight";
  lm_head_ = reader.Product({{head, config_.vocab_size}}, config_.hidden_size);
  if (!reader.status().ok()) return reader.status();
  absl::Status status = weights.CheckAllTaken();
  status.Update(CheckAllRead(config_));
  if (!status.ok()) return status;

  embedding_storage_ = context.Upload(table.data, table.bytes());
  embedding_ = {embedding_storage_.as<void>(), table.dtype, table.shape};
  weight_bytes_ = lm_head_.bytes() + final_norm_.bytes();
  for (const DecoderLayer& layer : layers_) {
    weight_bytes_ += layer.mixer->weight_bytes();
    weight_bytes_ += layer.input_norm.bytes() + layer.feed_forward_norm.bytes();
    if (layer.d_ff > 0) weight_bytes_ += layer.gate_up.bytes() + layer.down.bytes();
  }
  return absl::OkStatus();
}

TensorView LanguageModel::Forward(const StepBatch& batch, DeviceContext& context,
                                  ScratchScope& scope) const {
  const bool replayed = context.device() == Device::kCuda && batch.is_decode();
  const StepBatch* rows = &batch;
  StepBatch padded;
  if (replayed) {
    padded = Padded(batch);
    rows = &padded;
  }
  StepSeqs seqs = rows->seqs();
  if (replayed) RoundBounds(seqs);
  const StagedStep step =
      StageStep(context, seqs, layout_->growths(), rows->token_ids, rows->logit_rows);
  const TensorView logits =
      Matrix(scope, DType::kF32, static_cast<int64_t>(step.logit_rows.size()), config_.vocab_size);
  if (!replayed) {
    Run(step, context, logits);
  } else {
    const auto address = static_cast<int64_t>(reinterpret_cast<intptr_t>(logits.data));
    context.Captured({id_, seqs.n_seqs(), seqs.end_bound, seqs.slot_cap_bound, address},
                     [&] { Run(step, context, logits); });
  }
  return logits;
}

void LanguageModel::Run(const StagedStep& step, DeviceContext& context, TensorView logits) const {
  const int64_t n_rows = step.seqs.n_rows();
  ScratchScope scope(context);
  const TensorView h = Matrix(scope, DType::kF32, n_rows, config_.hidden_size);
  const TensorView x = Matrix(scope, compute_dtype_, n_rows, config_.hidden_size);
  const float eps = config_.rms_norm_eps;
  StepTensors tensors(scope);

  Embed(context, embedding_, step.token_ids, h);
  for (size_t i = 0; i < layers_.size(); ++i) {
    const DecoderLayer& layer = layers_[i];
    RmsNorm(context, h, ViewOf(layer.input_norm), eps, x);
    layer.mixer->Forward({context, step.seqs, layout_->layer(static_cast<int>(i)), tensors}, x, h);
    FeedForward(layer, eps, context, h, x);
  }
  if (step.logit_rows.empty()) return;
  const TensorView last = Rows(x, 0, logits.shape[0]);
  RmsNorm(context, h, ViewOf(final_norm_), eps, last, step.logit_rows);
  lm_head_.Apply(context, last, logits);
}

}  // namespace ovq
