// Search for infinities and NaNs in a tensor.
#pragma once

#include <cstdint>
#include <optional>

#include "kernels/common/tensor.h"

namespace ovq::model {

// Index, in memory order, of the first element that is infinite or NaN. F32, BF16 or F16.
std::optional<int64_t> FirstNotFinite(const kernels::TensorView& tensor);

}  // namespace ovq::model
