// Reads the config.json of a model folder, or what a GGUF file has in its place
// (docs/model-format.md).
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "model/cache_policy.h"
#include "model/config.h"

namespace ovq::model {

// The folder's own name, or ORG/NAME in the cache of the Hugging Face hub, whose folders are named
// by hashes: .../models--ORG--NAME/snapshots/HASH. Links to a folder have a name of their own. A
// GGUF file's name is without its ending.
std::string ModelName(const std::string& folder);

// The file of a model's fields: folder/config.json, or the GGUF file itself.
std::string ConfigPath(const std::string& folder);

// Reads folder/config.json and, if there is one, the end-of-sequence ids of
// folder/generation_config.json. NotFound, InvalidArgument (names the field), DataLoss (not JSON).
absl::StatusOr<ModelConfig> LoadConfig(const std::string& folder,
                                       const CachePolicy& policy = CachePolicies().front());
// Reads as much as is valid. OK, or all problems (SplitProblems). Invalid fields are 0 or empty;
// layers with invalid fields are marked (LayerSpec::is_wrong).
absl::Status LoadConfig(const std::string& folder, ModelConfig& config,
                        const CachePolicy& policy = CachePolicies().front());

}  // namespace ovq::model
