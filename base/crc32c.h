// CRC-32C (Castagnoli, RFC 3720), of parts of files.
#pragma once

#include <cstdint>
#include <string_view>

namespace ovq {

// Checksum of `bytes` appended to bytes whose checksum is `before`; 0 is the checksum of no bytes.
uint32_t Crc32c(std::string_view bytes, uint32_t before = 0);
// Crc32c without the processor's instruction, for processors that have none.
uint32_t Crc32cByTables(std::string_view bytes, uint32_t before = 0);

}  // namespace ovq
