// GgufConfig: what config.json would say of a GGUF file's model.
#pragma once

#include <nlohmann/json.hpp>

#include "absl/status/statusor.h"
#include "model/gguf/gguf_file.h"

namespace ovq::model {

// The config.json of the family that the architecture belongs to, in the fields of transformers.
// InvalidArgument or Unimplemented with all problems (SplitProblems), which name keys and tensors,
// not the file.
absl::StatusOr<nlohmann::json> GgufConfig(const GgufFile& file);

}  // namespace ovq::model
