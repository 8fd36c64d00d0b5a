// Loads the model that the options name, sizes the memory of the server, and implements --plan and
// --check-config, which print without serving.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "model/chat_template/chat_format.h"
#include "model/language_model.h"
#include "server/calls/service_context.h"
#include "server/engine/engine.h"
#include "server/options.h"
#include "server/telemetry/log.h"

namespace ovq::server {

// Objects that must outlive the server, in the order of their creation.
struct Loaded {
  std::unique_ptr<kernels::DeviceContext> context;
  std::vector<std::unique_ptr<model::LanguageModel>> models;  // one for each value of --memory
  std::unique_ptr<model::Tokenizer> tokenizer;
  std::unique_ptr<jinja::ChatFormat> chat_format;  // null: the folder has no chat template
};

// Loads everything. Errors name the flag or the file.
absl::StatusOr<Loaded> LoadAll(const Options& options, Log& log);

ModelDescription Describe(const Loaded& loaded, const Options& options);

// `loaded` must outlive the result.
engine::EngineModel ToEngineModel(const Loaded& loaded, const Options& options);

// Returns the bytes for session states. Call it once the weights are loaded: the memory that is
// free then is for states and batches.
absl::StatusOr<size_t> StateMemoryBytes(const Options& options, const model::ModelConfig& config,
                                        kernels::DeviceContext& context);

// Limits of host memory for copies of states, beside the states themselves.
struct CopyMemory {
  size_t checkpoints, prefixes;  // bytes
};
CopyMemory CopyMemoryFor(const Options& options, size_t state_memory);

// Logs the model and how many sessions fit.
void LogSummary(const model::LanguageModel& model, const ModelDescription& description,
                const engine::EngineModel& served, const engine::EngineOptions& options, Log& log);

// Implements --plan: returns, for each value of --memory, one line for each cap and length with the
// bytes that the server reserves for such a session, how many of them fit in --state-memory, and
// how many are admitted at once (at most --max-sessions). Reads only the config: needs neither
// weights nor a GPU. ParseCommandLine has checked that --state-memory is given.
absl::StatusOr<std::string> PlanText(const Options& options);

// Implements --check-config: returns every option with its value and origin, after checking
// everything that a start reads except the weights' values. Returns the first error.
absl::StatusOr<std::string> CheckConfig(const CommandLine& line);

}  // namespace ovq::server
