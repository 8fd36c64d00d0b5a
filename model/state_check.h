// Validation of session states that come from outside (with state_check.h of the mixers).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "absl/status/status.h"
#include "model/state_layout.h"

namespace ovq::model {

// Checks a state's live bytes in snapshot order, aligned to 4 bytes, at this position and slot cap.
// Any thread. DataLoss names the layer, its mixer, the field, the element and what was expected. No
// kernel reads or writes out of bounds, or fails to end, on bytes that pass, whoever made them.
absl::Status CheckState(const StateLayout& layout, int64_t position, int64_t slot_cap,
                        std::span<const std::byte> state);
// Checks a state in place, in a session's address range that the host can read; position > 0.
absl::Status CheckState(const StateLayout& layout, int64_t position, int64_t slot_cap,
                        const std::byte* base);

}  // namespace ovq::model
