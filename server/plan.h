// What the program prints without serving: how many sessions fit, and whether its options are
// right.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "model/config.h"
#include "server/options.h"

namespace ovq {

// What the states of a model are kept in: --state-dtype, or as the checkpoint is.
DType StateDType(const Options& options, const ModelConfig& config);

// --plan: a line for each cap and length with the bytes that the server reserves for such a
// session, how many of them --state-memory has room for, and how many are admitted at once (at most
// --max-sessions). From the config alone: needs neither weights nor a GPU. ParseCommandLine has
// checked that --state-memory is given.
absl::StatusOr<std::string> PlanText(const Options& options);

// --check-config: every option with its value and origin, after a look at everything that a start
// reads but the weights' values. The first thing wrong is the error.
absl::StatusOr<std::string> CheckConfig(const CommandLine& line);

}  // namespace ovq
