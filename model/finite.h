// Whether a tensor's values are numbers.
#pragma once

#include <cstdint>
#include <optional>

#include "kernels/common/tensor.h"

namespace ovq {

// The first element, in the order of memory, that is infinite or no number; of F32, BF16 and F16.
std::optional<int64_t> FirstNotFinite(const TensorView& tensor);

}  // namespace ovq
