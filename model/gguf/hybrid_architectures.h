// Architectures of GGUF files whose layers are not all of one kind: recurrent ones beside
// attention, experts beside feed-forwards.
#pragma once

#include <span>

#include "model/gguf/architecture.h"

namespace ovq::model {

std::span<const Architecture> HybridArchitectures();

}  // namespace ovq::model
