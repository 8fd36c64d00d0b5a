// Whether a session's state is one that the model's kernels may have (state_check.h of the mixers).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "absl/status/status.h"
#include "model/state_layout.h"

namespace ovq {

// Of a state's live bytes as a snapshot has them, at this position and with this slot cap, at a
// multiple of 4 bytes; any thread. DataLoss names the layer, its mixer, the field, the element and
// what was expected. Nothing else is left to say of bytes that pass: no kernel reads or writes
// beyond what is its own, or comes to no end, whoever made them.
absl::Status CheckState(const StateLayout& layout, int64_t position, int64_t slot_cap,
                        std::span<const std::byte> state);
// The same where they lie in a session's range, of which the host has the address; beyond position
// 0.
absl::Status CheckState(const StateLayout& layout, int64_t position, int64_t slot_cap,
                        const std::byte* base);

}  // namespace ovq
