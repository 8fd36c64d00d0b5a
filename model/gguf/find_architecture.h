// FindArchitecture: the architecture of a GGUF file by its name.
#pragma once

#include "absl/status/statusor.h"
#include "model/gguf/architecture.h"

namespace ovq::model {

// Unimplemented naming general.architecture and those that are served.
absl::StatusOr<const Architecture*> FindArchitecture(const GgufFile& file);

}  // namespace ovq::model
