// From options to a loaded model and the sizes of what it serves.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "model/language_model.h"
#include "server/engine/engine.h"
#include "server/options.h"
#include "server/rpc/grpc_context.h"
#include "server/telemetry/log.h"

namespace ovq {

// What must outlive the server, in the order of making.
struct Loaded {
  std::unique_ptr<DeviceContext> context;
  std::unique_ptr<LanguageModel> model;
  std::unique_ptr<Tokenizer> tokenizer;
};

// Errors name the flag or the file.
absl::StatusOr<Loaded> LoadAll(const Options& options, Log& log);

ModelDescription Describe(const LanguageModel& model, const Options& options);

// Both outlive what is returned.
EngineModel ForEngine(const LanguageModel& model, const Tokenizer& tokenizer);

// With the weights loaded: what is free now is the states' and the steps'.
absl::StatusOr<size_t> StateMemoryBytes(const Options& options, const ModelConfig& config,
                                        const DeviceContext& context);
EngineOptions ForEngine(const Options& options, size_t state_memory_bytes);

// The model and how many sessions fit.
void LogSummary(const LanguageModel& model, const ModelDescription& description,
                const EngineOptions& options, Log& log);

}  // namespace ovq
