// CRC-32C (Castagnoli, RFC 3720), for parts of files.
#pragma once

#include <cstdint>
#include <string_view>

namespace ovq {

// Of `bytes` behind those whose checksum is `before`; 0 is the checksum of none.
uint32_t Crc32c(std::string_view bytes, uint32_t before = 0);
// The same without the processor's instruction for it, as where there is none.
uint32_t Crc32cByTables(std::string_view bytes, uint32_t before = 0);

}  // namespace ovq
