// The config.json of a model folder (docs/model-format.md).
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "model/config.h"

namespace ovq {

// Reads folder/config.json. NotFound, InvalidArgument (field named), DataLoss (not JSON).
absl::StatusOr<ModelConfig> LoadConfig(const std::string& folder);

}  // namespace ovq
