// Memory for packed weights on the host: on huge pages where the system has them for the asking.
// Decoding reads all weights for every token, so what an address costs to translate shows there.
#pragma once

#include <cstddef>
#include <memory>

namespace ovq {

// Not initialised, 256-byte aligned, for as long as somebody holds it. Pieces lie together in large
// blocks, so that those smaller than a huge page have such pages too. The last piece's room is used
// again when it goes, a block's when all of its pieces have. Any thread.
std::shared_ptr<std::byte> WeightMemory(size_t bytes);

}  // namespace ovq
