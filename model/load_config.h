// The config.json of a model folder (docs/model-format.md).
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "model/config.h"

namespace ovq {

// Reads folder/config.json, and of folder/generation_config.json, if there is one, the ids that end
// a generation. NotFound, InvalidArgument (field named), DataLoss (not JSON).
absl::StatusOr<ModelConfig> LoadConfig(const std::string& folder,
                                       CachePolicy policy = CachePolicy::kAsTrained);
// As much of it as can be read: OK, or all that is wrong (SplitProblems). What is wrong is 0 or
// empty; layers that cannot be made of their fields are marked (LayerSpec::is_wrong).
absl::Status LoadConfig(const std::string& folder, ModelConfig& config,
                        CachePolicy policy = CachePolicy::kAsTrained);

}  // namespace ovq
