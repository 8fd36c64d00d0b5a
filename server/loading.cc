#include "server/loading.h"

#include <algorithm>
#include <iterator>
#include <limits>
#include <map>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "base/machine.h"
#include "base/problems.h"
#include "base/status_macros.h"
#include "kernels/common/device_memory.h"
#include "kernels/common/product_choices.h"
#include "kernels/common/state_memory.h"
#include "model/cache_policy.h"
#include "model/load_config.h"
#include "model/weights.h"

namespace ovq::server {
namespace {

std::string Lower(const char* name) { return absl::AsciiStrToLower(name); }

// Returns the bytes that the largest batch takes beside the states: its logits and activations,
// twice because scratch grows by doubling, and the partial results of split attention, the
// sampler's scratch and recorded graphs.
size_t BatchScratchBytes(const model::ModelConfig& config, const Options& options) {
  int64_t of_layer = 0;
  for (const model::LayerSpec& layer : config.layers) {
    int64_t width = 3 * layer.feed_forward.width;
    if (const auto& mixture = layer.feed_forward.mixture) {
      width += mixture->router.n_chosen * (3 * mixture->width + config.hidden_size);
    }
    of_layer = std::max(of_layer, width);
  }
  const int64_t row = config.vocab_size + of_layer + 8 * config.hidden_size;
  return 2 * sizeof(float) * static_cast<size_t>(options.engine.max_batch_tokens * row) +
         (size_t{512} << 20);
}

// On a GPU, reserves scratch memory before the first batch: later other processes may have taken
// it. Half of a batch's bytes, so that it may still double.
absl::Status ReserveScratch(const Options& options, const model::ModelConfig& config,
                            kernels::DeviceContext& context) {
  if (context.device() != kernels::Device::kCuda) return absl::OkStatus();
  return InContext(
      "scratch memory of a step of --max-batch-tokens", kernels::CatchDeviceErrors([&] {
        kernels::ScratchScope(context).Allocate<std::byte>(BatchScratchBytes(config, options) / 2);
      }));
}

// Returns the element type of session states: --state-dtype, or by default the checkpoint's.
kernels::DType StateDType(const Options& options, const model::ModelConfig& config) {
  return options.state_dtype.value_or(config.default_dtype());
}

model::StateLimits StateLimitsFor(const Options& options) {
  return {.max_slot_cap = options.engine.max_slot_cap, .max_unbounded_tokens = options.max_context};
}

absl::StatusOr<model::StateLayout> PlanLayout(const Options& options,
                                              const model::ModelConfig& config) {
  const size_t page = options.device == kernels::Device::kCuda ? kernels::kUsualGpuPageBytes
                                                               : kernels::kHostPageBytes;
  absl::StatusOr<model::StateLayout> layout = model::PlanStateLayout(
      config, StateDType(options, config), StateLimitsFor(options), options.device, page);
  if (!layout.ok()) return InContext(model::ConfigPath(options.model), layout.status());
  return layout;
}

std::string KvBytes(int64_t tokens, size_t bytes_per_token) {
  if (bytes_per_token == 0) return "-";
  uint64_t product = 0;
  const bool over =
      __builtin_mul_overflow(static_cast<uint64_t>(tokens), bytes_per_token, &product);
  return over ? absl::StrCat("over ", std::numeric_limits<uint64_t>::max()) : absl::StrCat(product);
}

// Appends one line for each cap and length: a session with a known last position reserves its size
// at that position, any other its cap.
void AppendRows(const Options& options, const model::ModelConfig& config,
                const model::StateLayout& layout, std::string& text) {
  const size_t kv = model::FullKvBytesPerToken(config, StateDType(options, config));
  const auto append = [&](int64_t cap, const std::string& tokens, size_t bytes,
                          const std::string& full_kv_bytes, const std::string& live_slots) {
    const size_t fit = *options.state_memory_bytes / std::max<size_t>(bytes, 1);
    absl::StrAppendFormat(&text, "%13d %16s %16d %14d %10d %20s %11s\n", cap, tokens, bytes, fit,
                          std::min(fit, static_cast<size_t>(options.engine.max_sessions)),
                          full_kv_bytes, live_slots);
  };
  std::vector<int64_t> caps = options.plan_slot_caps;
  if (caps.empty() || !layout.has_slot_cap()) {
    caps = {layout.default_slot_cap()};
  }
  for (const int64_t cap : caps) {
    append(cap, "any", layout.bytes_cap(cap), "-", "-");
    for (const int64_t tokens : options.plan_tokens) {
      if (layout.has_unbounded() && tokens > options.max_context) continue;
      const std::string live =
          layout.has_slot_cap() ? absl::StrCat(layout.LiveSlotsAt(tokens, cap)) : "-";
      append(cap, absl::StrCat(tokens), layout.bytes_at(tokens, cap), KvBytes(tokens, kv), live);
    }
  }
}

// Returns one line for each kind of layers whose states are not of type `dtype`.
std::string OtherTypes(const model::StateLayout& layout, kernels::DType dtype) {
  std::map<std::string, kernels::DType> others;
  for (const kernels::MixerState& state : layout.mixers()) {
    std::vector<kernels::StateField> fields = state.fixed.list();
    std::ranges::copy(state.block.list(), std::back_inserter(fields));
    if (fields.empty() || state.name.empty()) continue;
    const kernels::StateField& largest =
        *std::ranges::max_element(fields, {}, &kernels::StateField::bytes);
    if (largest.dtype != dtype) others[state.name] = largest.dtype;
  }
  std::string text;
  for (const auto& [name, other] : others) {
    absl::StrAppend(&text, name, " layers keep their states in ", Lower(kernels::DTypeName(other)),
                    "\n");
  }
  return text;
}

// Returns the name of the type of most weights.
std::string WeightsName(const model::LanguageModel& model) {
  return model.weights() == kernels::WeightType::kInt8
             ? "int8"
             : Lower(kernels::DTypeName(model.compute_dtype()));
}

// Returns which factors of RoPE a model with two lists of them has; empty for others.
std::string RopeChoice(const model::LanguageModel& model) {
  const int64_t tokens = model.config().short_rope_tokens();
  if (tokens == 0) return "";
  return model.most_tokens() <= tokens
             ? absl::StrCat("RoPE: short_factor, as --max-context ends sessions by ", tokens)
             : absl::StrCat("RoPE: long_factor, as sessions may have more than ", tokens,
                            " tokens; --max-context ", tokens, " would give short_factor");
}

// Warns of a cache policy under which every conversation would be refused, as each reserves its
// cap.
void WarnIfNoneFits(const engine::ModelVariant& variant, size_t state_memory, Log& log) {
  const model::StateLayout& layout = *variant.layout;
  const int32_t cap = variant.default_slot_cap;
  const size_t bytes = layout.bytes_cap(cap);
  if (bytes <= state_memory) return;
  log.Warning(absl::StrCat(
      "memory ", variant.name, ": no conversation fits in --state-memory, as each reserves ", bytes,
      " bytes for ",
      layout.has_unbounded()
          ? absl::StrCat("the ", layout.limits().max_unbounded_tokens,
                         " tokens of --max-context: lower that, or bound sessions by --memory")
          : absl::StrCat(cap, " max_centroids, the default: lower --max-centroids")));
}

}  // namespace

absl::StatusOr<Loaded> LoadAll(const Options& options, Log& log) {
  Loaded loaded;
  ASSIGN_OR_RETURN(model::ModelConfig config,
                   model::LoadConfig(options.model, options.cache_policies.front()));
  // Before the weights, which take longer.
  ASSIGN_OR_RETURN(std::unique_ptr<model::Tokenizer> tokenizer,
                   model::Tokenizer::Load(options.model, config));
  loaded.tokenizer = std::move(tokenizer);
  for (const std::string& note : loaded.tokenizer->notes()) log.Warning("tokenizer: " + note);
  ASSIGN_OR_RETURN(loaded.chat_format,
                   jinja::ChatFormat::Load(options.model, options.chat_template));
  ASSIGN_OR_RETURN(loaded.context,
                   kernels::DeviceContext::Make(
                       options.device, options.threads > 0 ? options.threads : UsableProcessors()));
  loaded.context->BindThread();
  if (const std::optional<kernels::GpuInfo> gpu = loaded.context->Gpu()) {
    log.Info(absl::StrFormat("GPU %s: %d bytes of memory, %d free", gpu->name, gpu->total_bytes,
                             gpu->free_bytes));
  }

  model::ModelOptions model_options;
  model_options.compute_dtype = options.compute_dtype;
  model_options.weights = options.weights;
  model_options.state_dtype = StateDType(options, config);
  model_options.limits = StateLimitsFor(options);
  ASSIGN_OR_RETURN(loaded.models,
                   model::LanguageModel::LoadEach(options.model, model_options,
                                                  options.cache_policies, *loaded.context));
  for (const kernels::ProductChoice& choice : kernels::ProductChoices())
    log.Info(choice.ToString());
  for (const auto& each : loaded.models) {
    if (const std::string choice = RopeChoice(*each); !choice.empty()) log.Info(choice);
  }
  RETURN_IF_ERROR(ReserveScratch(options, config, *loaded.context));
  return loaded;
}

ModelDescription Describe(const Loaded& loaded, const Options& options) {
  const model::LanguageModel& model = *loaded.models.front();
  const model::ModelConfig& config = model.config();
  const std::vector<std::string>& names = options.served_model_names;
  return {.names = names.empty() ? std::vector{config.name} : names,
          .fingerprint = model.fingerprint(),
          .hidden_size = config.hidden_size,
          .parameters = model.parameters(),
          .bos_token_id = config.bos_token_id,
          .device = kernels::DeviceName(options.device),
          .compute_dtype = Lower(kernels::DTypeName(model.compute_dtype())),
          .weights = WeightsName(model),
          .products = kernels::ProductChoices(),
          .state_dtype = Lower(kernels::DTypeName(model.state_dtype())),
          .cache_policies = absl::StrJoin(options.cache_policies, ",",
                                          [](std::string* text, const model::CachePolicy& policy) {
                                            absl::StrAppend(text, policy.name);
                                          }),
          .weight_bytes = model.weight_count().bytes,
          .has_gpu = options.device == kernels::Device::kCuda,
          .has_dictionary = std::ranges::any_of(
              loaded.models, [](const auto& each) { return each->layout().has_slot_cap(); })};
}

engine::EngineModel ToEngineModel(const Loaded& loaded, const Options& options) {
  const model::LanguageModel& first = *loaded.models.front();
  const model::ModelConfig& config = first.config();
  engine::EngineModel result;
  result.vocab_size = config.vocab_size;
  result.eos_token_ids = config.eos_token_ids;
  result.full_kv_bytes_per_token = first.full_kv_bytes_per_token();
  result.weight_bytes = static_cast<size_t>(first.weight_count().ReadBy(1));
  result.tokenizer = loaded.tokenizer->has_text() ? loaded.tokenizer.get() : nullptr;
  result.SetChatFormat(loaded.chat_format.get(), options.call_syntax);
  result.vocabulary = result.MakeVocabulary();
  for (size_t i = 0; i < loaded.models.size(); ++i) {
    const model::LanguageModel& model = *loaded.models[i];
    result.variants.push_back(
        {.name = options.cache_policies[i].name,
         .fingerprint = model.fingerprint(),
         .layer_types = model.config().layer_types(),
         .default_slot_cap = static_cast<int32_t>(model.layout().default_slot_cap()),
         .layout = &model.layout(),
         .exact_tokens = [&model](int64_t cap) { return model::ExactTokens(model.config(), cap); },
         .forward =
             [&model](const model::Batch& batch, kernels::DeviceContext& context,
                      kernels::ScratchScope& scope) {
               return model.Forward(batch, context, scope);
             },
         .undo_extents =
             [&model](const kernels::TokenRange& tokens) { return model.UndoExtents(tokens); },
         .can_undo_suffix =
             [&model](const kernels::TokenRange& tokens) { return model.CanUndoSuffix(tokens); }});
  }
  return result;
}

absl::StatusOr<size_t> StateMemoryBytes(const Options& options, const model::ModelConfig& config,
                                        kernels::DeviceContext& context) {
  std::optional<kernels::GpuInfo> gpu = context.Gpu();
  if (!gpu) return options.state_memory_bytes.value_or(UsableMemory().available / 2);
  // A GPU does not swap: promising memory that it does not have would end the server later.
  const size_t step = BatchScratchBytes(config, options);
  gpu->free_bytes += context.scratch().capacity_bytes();  // part of a batch's scratch memory
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

CopyMemory CopyMemoryFor(const Options& options, size_t state_memory) {
  return {.checkpoints = options.checkpoint_memory_bytes.value_or(state_memory / 8),
          .prefixes = options.prefix_memory_bytes.value_or(state_memory / 8)};
}

void LogSummary(const model::LanguageModel& model, const ModelDescription& description,
                const engine::EngineModel& served, const engine::EngineOptions& options, Log& log) {
  log.Info(
      absl::StrFormat("model %s: %d parameters, %d layers, %d weight bytes in %s, compute %s on %s",
                      description.names.front(), description.parameters, model.config().n_layers,
                      model.weight_count().bytes, description.weights, description.compute_dtype,
                      description.device));
  if (model.active_parameters() != model.parameters()) {
    log.Info(absl::StrFormat("experts: a token reads %d parameters, %d weight bytes",
                             model.active_parameters(), served.weight_bytes));
  }
  for (const engine::ModelVariant& variant : served.variants) {
    const int32_t cap = variant.default_slot_cap;
    log.Info(absl::StrFormat(
        "memory %s: %s, at most %d bytes a session at max_centroids %d; %d sessions fit in %d "
        "bytes",
        variant.name, description.state_dtype, variant.layout->bytes_cap(cap), cap,
        engine::SessionSlots(*variant.layout, cap, options.state_memory_bytes,
                             options.max_sessions),
        options.state_memory_bytes));
    WarnIfNoneFits(variant, options.state_memory_bytes, log);
    if (const std::optional<int64_t> exact = variant.exact_tokens(cap)) {
      log.Info(
          absl::StrFormat("memory %s: sessions are exact up to %d tokens, approximate after that",
                          variant.name, *exact));
    }
  }
}

// Says what the weights take in memory, and how much of that a token reads.
std::string WeightsText(const Options& options, const model::ModelConfig& config) {
  const kernels::DType compute = options.compute_dtype.value_or(config.default_dtype());
  const kernels::WeightCount count =
      model::LanguageModel::CountWeights(config, {compute, options.weights});
  std::string text = absl::StrFormat("weights of %d bytes in memory", count.bytes);
  if (count.expert_parameters > 0) {
    absl::StrAppendFormat(&text,
                          ", of which a token reads %d; experts of %d parameters, of which a token "
                          "reads %d",
                          static_cast<size_t>(count.ReadBy(1)), count.expert_parameters,
                          count.expert_parameters - count.idle_parameters);
  }
  absl::StrAppend(&text, "; an embedding of ", config.embedding_bytes(), " bytes\n");
  return text;
}

absl::StatusOr<std::string> PlanText(const Options& options) {
  const size_t budget = *options.state_memory_bytes;
  std::string text, weights;
  for (const model::CachePolicy& policy : options.cache_policies) {
    ASSIGN_OR_RETURN(model::ModelConfig config, model::LoadConfig(options.model, policy));
    ASSIGN_OR_RETURN(model::StateLayout layout, PlanLayout(options, config));
    absl::StrAppendFormat(
        &text,
        "model %s, memory %s, states in %s on %s: %d bytes for states, at most %d sessions\n",
        config.name, policy.name, Lower(kernels::DTypeName(StateDType(options, config))),
        kernels::DeviceName(options.device), budget, options.engine.max_sessions);
    text += OtherTypes(layout, StateDType(options, config));
    if (options.device == kernels::Device::kCuda) {
      absl::StrAppendFormat(&text, "assuming that the GPU gives memory in pages of %d bytes\n",
                            kernels::kUsualGpuPageBytes);
    }
    absl::StrAppendFormat(&text, "%13s %16s %16s %14s %10s %20s %11s\n", "max_centroids", "tokens",
                          "bytes_reserved", "fit_in_memory", "sessions", "full_kv_cache_bytes",
                          "live_slots");
    AppendRows(options, config, layout, text);
    weights = WeightsText(options, config);  // which all policies share
  }
  text += weights;
  const CopyMemory copies = CopyMemoryFor(options, budget);
  absl::StrAppendFormat(
      &text,
      "beside them in the host's memory: %d bytes for earlier states of sessions, "
      "%d for what prompts begin with, %d for each token that a session keeps\n",
      copies.checkpoints, copies.prefixes, sizeof(int32_t));
  return text;
}

absl::StatusOr<std::string> CheckConfig(const CommandLine& line) {
  const Options& options = line.options;
  absl::StatusOr<model::ModelConfig> config;
  for (const model::CachePolicy& policy : options.cache_policies) {
    config = model::LoadConfig(options.model, policy);
    if (!config.ok()) return config.status();
    RETURN_IF_ERROR(PlanLayout(options, *config).status());
  }
  model::Weights weights;
  RETURN_IF_ERROR(model::Weights::Open(options.model, weights));
  if (absl::Status status = model::LanguageModel::Check(*config, weights); !status.ok()) {
    return InContext(options.model, status);
  }
  RETURN_IF_ERROR(model::Tokenizer::Load(options.model, *config).status());
  RETURN_IF_ERROR(jinja::ChatFormat::Load(options.model, options.chat_template).status());
  std::string text;
  for (const Setting& setting : line.settings) {
    // Formats a file for --config, in which options with default values are comments.
    const bool said = setting.origin != kDefaultOrigin;
    absl::StrAppend(&text,
                    said ? absl::StrCat("# ", setting.origin, "\n") : "# default: ", setting.name,
                    " = ", setting.value, "\n");
  }
  return text;
}

}  // namespace ovq::server
