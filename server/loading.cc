#include "server/loading.h"

#include <algorithm>
#include <filesystem>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "server/plan.h"
#include "server/telemetry/process_stats.h"

namespace ovq {
namespace {

std::string Lower(const char* name) { return absl::AsciiStrToLower(name); }

// "/models/tiny/" and "/models/tiny" are both "tiny".
std::string FolderName(const std::string& folder) {
  std::filesystem::path path = std::filesystem::absolute(folder).lexically_normal();
  if (path.filename().empty()) path = path.parent_path();
  return path.filename().string();
}

// What the largest step takes beside the states: its logits and activations, twice because scratch
// grows by doubling, and the parts of split attention, the sampler's scratch and recorded graphs.
size_t StepBytes(const ModelConfig& config, const Options& options) {
  const int64_t d_ff = std::ranges::max(config.intermediate_size);
  const int64_t row = config.vocab_size + 3 * d_ff + 8 * config.hidden_size;
  return 2 * sizeof(float) * static_cast<size_t>(options.max_batch_tokens * row) +
         (size_t{512} << 20);
}

}  // namespace

absl::StatusOr<Loaded> LoadAll(const Options& options, Log& log) {
  Loaded loaded;
  absl::StatusOr<ModelConfig> config = LoadConfig(options.model);
  if (!config.ok()) return config.status();
  absl::StatusOr<std::unique_ptr<DeviceContext>> context =
      DeviceContext::Make(options.device, options.threads);
  if (!context.ok()) return context.status();
  loaded.context = *std::move(context);
  loaded.context->BindThread();
  if (const std::optional<GpuInfo> gpu = loaded.context->Gpu()) {
    log.Info(absl::StrFormat("GPU %s: %d bytes of memory, %d free", gpu->name, gpu->total_bytes,
                             gpu->free_bytes));
  }

  ModelOptions model_options;
  model_options.compute_dtype = options.compute_dtype;
  model_options.state_dtype = StateDType(options, *config);
  model_options.limits = {.max_slot_cap = options.max_slot_cap,
                          .max_unbounded_tokens = options.max_context};
  absl::StatusOr<std::unique_ptr<LanguageModel>> model =
      LanguageModel::Load(options.model, model_options, *loaded.context);
  if (!model.ok()) return model.status();
  loaded.model = *std::move(model);
  absl::StatusOr<std::unique_ptr<Tokenizer>> tokenizer =
      Tokenizer::Load(options.model, loaded.model->config());
  if (!tokenizer.ok()) return tokenizer.status();
  loaded.tokenizer = *std::move(tokenizer);
  return loaded;
}

ModelDescription Describe(const LanguageModel& model, const Options& options) {
  const ModelConfig& config = model.config();
  return {.name = FolderName(options.model),
          .fingerprint = model.fingerprint(),
          .hidden_size = config.hidden_size,
          .layer_types = config.layer_types,
          .parameters = model.parameters(),
          .bos_token_id = config.bos_token_id,
          .device = DeviceName(options.device),
          .compute_dtype = Lower(DTypeName(model.compute_dtype())),
          .state_dtype = Lower(DTypeName(model.state_dtype()))};
}

EngineModel ForEngine(const LanguageModel& model, const Tokenizer& tokenizer) {
  const ModelConfig& config = model.config();
  EngineModel result;
  result.vocab_size = config.vocab_size;
  result.eos_token_ids = config.eos_token_ids;
  result.default_slot_cap = static_cast<int32_t>(model.layout().default_slot_cap());
  result.full_kv_bytes_per_token = model.full_kv_bytes_per_token();
  result.layout = &model.layout();
  result.tokenizer = tokenizer.has_text() ? &tokenizer : nullptr;
  result.forward = [&model](const StepBatch& batch, DeviceContext& context, ScratchScope& scope) {
    return model.Forward(batch, context, scope);
  };
  return result;
}

absl::StatusOr<size_t> StateMemoryBytes(const Options& options, const ModelConfig& config,
                                        const DeviceContext& context) {
  const std::optional<GpuInfo> gpu = context.Gpu();
  if (!gpu) return options.state_memory_bytes.value_or(AvailableMemoryBytes() / 2);
  // A GPU does not swap: what was promised and is not there would end the server later.
  const size_t step = StepBytes(config, options);
  const size_t room = gpu->free_bytes - std::min(step, gpu->free_bytes);
  const size_t bytes = options.state_memory_bytes.value_or(std::min(gpu->free_bytes / 2, room));
  if (bytes > room || room == 0) {
    return absl::InvalidArgumentError(
        absl::StrFormat("--state-memory: expected at most %d bytes, got %d: %s has %d bytes free "
                        "after the weights, "
                        "of which a step of --max-batch-tokens takes %d",
                        room, bytes, gpu->name, gpu->free_bytes, step));
  }
  return bytes;
}

EngineOptions ForEngine(const Options& options, size_t state_memory_bytes) {
  EngineOptions result;
  result.state_memory_bytes = state_memory_bytes;
  result.max_sessions = options.max_sessions;
  result.max_queue = options.max_queue;
  result.max_batch_tokens = options.max_batch_tokens;
  result.max_slot_cap = options.max_slot_cap;
  result.max_prompt_tokens = options.max_prompt_tokens;
  result.session_ttl = options.session_ttl;
  return result;
}

void LogSummary(const LanguageModel& model, const ModelDescription& description,
                const EngineOptions& options, Log& log) {
  const size_t cap =
      model.layout().bytes_cap(static_cast<int32_t>(model.layout().default_slot_cap()));
  const int fit =
      SessionSlots(model.layout(), static_cast<int32_t>(model.layout().default_slot_cap()),
                   options.state_memory_bytes, options.max_sessions);
  log.Info(absl::StrFormat("model %s: %d parameters, %d layers, %d weight bytes, compute %s on %s",
                           description.name, description.parameters, description.layer_types.size(),
                           model.weight_bytes(), description.compute_dtype, description.device));
  log.Info(absl::StrFormat(
      "state: %s, at most %d bytes a session at max_centroids %d; %d sessions fit in %d bytes",
      description.state_dtype, cap, model.layout().default_slot_cap(), fit,
      options.state_memory_bytes));
}

}  // namespace ovq
