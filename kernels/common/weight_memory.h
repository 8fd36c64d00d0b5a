// Host memory for packed weights, on huge pages where the system grants them. Decoding reads all
// weights for every token, so the cost of address translation shows there.
#pragma once

#include <cstddef>
#include <memory>

namespace ovq::kernels {

// Returns uninitialised, 256-byte aligned memory that lives as long as the pointer. Pieces lie
// together in large blocks, so that pieces smaller than a huge page get huge pages too. The last
// piece's room is reused when it is freed, a block's when all of its pieces are. Any thread.
std::shared_ptr<std::byte> WeightMemory(size_t bytes);

}  // namespace ovq::kernels
