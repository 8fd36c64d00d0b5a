// From options to a loaded model and the sizes of what it serves, and what the program prints
// without serving: how many sessions fit, and whether its options are right.
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

namespace ovq {

// What must outlive the server, in the order of making.
struct Loaded {
  std::unique_ptr<DeviceContext> context;
  std::vector<std::unique_ptr<LanguageModel>> models;  // one for each of --memory
  std::unique_ptr<Tokenizer> tokenizer;
  std::unique_ptr<ChatFormat> chat_format;  // null: the folder has no chat template
};

// Errors name the flag or the file.
absl::StatusOr<Loaded> LoadAll(const Options& options, Log& log);

ModelDescription Describe(const Loaded& loaded, const Options& options);

// `loaded` outlives what is returned.
EngineModel ToEngineModel(const Loaded& loaded, const Options& options);

// With the weights loaded: what is free now is the states' and the steps'.
absl::StatusOr<size_t> StateMemoryBytes(const Options& options, const ModelConfig& config,
                                        DeviceContext& context);

// What copies of states may take of the host's memory beside the states.
struct CopyMemory {
  size_t checkpoints, prefixes;  // bytes
};
CopyMemory CopyMemoryFor(const Options& options, size_t state_memory);

// The model and how many sessions fit.
void LogSummary(const LanguageModel& model, const ModelDescription& description,
                const EngineModel& served, const EngineOptions& options, Log& log);

// --plan: for each of --memory a line for each cap and length with the bytes that the server
// reserves for such a session, how many of them --state-memory has room for, and how many are
// admitted at once (at most
// --max-sessions). From the config alone: needs neither weights nor a GPU. ParseCommandLine has
// checked that --state-memory is given.
absl::StatusOr<std::string> PlanText(const Options& options);

// --check-config: every option with its value and origin, after a look at everything that a start
// reads but the weights' values. The first thing wrong is the error.
absl::StatusOr<std::string> CheckConfig(const CommandLine& line);

}  // namespace ovq
