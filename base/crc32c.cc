#include "base/crc32c.h"

#include <array>
#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace ovq {
namespace {

// tables[k][b]: the checksum's change by byte b followed by k zero bytes.
using Tables = std::array<std::array<uint32_t, 256>, 8>;

constexpr Tables MakeTables() {
  Tables tables{};
  for (uint32_t b = 0; b < 256; ++b) {
    uint32_t crc = b;
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1) != 0 ? 0x82f63b78u : 0);
    tables[0][b] = crc;
  }
  for (size_t k = 1; k < 8; ++k) {
    for (size_t b = 0; b < 256; ++b) {
      const uint32_t crc = tables[k - 1][b];
      tables[k][b] = (crc >> 8) ^ tables[0][crc & 0xff];
    }
  }
  return tables;
}

constexpr Tables kTables = MakeTables();

#if defined(__x86_64__)
// The processor's instruction takes three cycles and one can begin in each cycle, so three lanes of
// a block are computed side by side and joined at its end.
constexpr size_t kLane = 2048;

// behind[k][b]: byte k of a checksum, with value b, after kLane zero bytes.
using LaneTables = std::array<std::array<uint32_t, 256>, 4>;

constexpr LaneTables MakeLaneTables() {
  LaneTables behind{};
  for (int bit = 0; bit < 32; ++bit) {
    uint32_t crc = 1u << bit;
    for (size_t i = 0; i < kLane; ++i) crc = (crc >> 8) ^ kTables[0][crc & 0xff];
    for (uint32_t b = 0; b < 256; ++b) {
      if ((b >> (bit % 8) & 1) != 0) behind[bit / 8][b] ^= crc;
    }
  }
  return behind;
}

constexpr LaneTables kBehind = MakeLaneTables();

uint32_t BehindLane(uint32_t crc) {
  return kBehind[0][crc & 0xff] ^ kBehind[1][(crc >> 8) & 0xff] ^ kBehind[2][(crc >> 16) & 0xff] ^
         kBehind[3][crc >> 24];
}

uint64_t Word(const char* at) {
  uint64_t word;
  std::memcpy(&word, at, sizeof(word));
  return word;
}

__attribute__((target("sse4.2"))) uint32_t AddByInstruction(std::string_view bytes, uint32_t crc) {
  for (; bytes.size() >= 3 * kLane; bytes.remove_prefix(3 * kLane)) {
    uint64_t a = crc, b = 0, c = 0;
    for (const char *at = bytes.data(), *end = at + kLane; at < end; at += 8) {
      a = _mm_crc32_u64(a, Word(at));
      b = _mm_crc32_u64(b, Word(at + kLane));
      c = _mm_crc32_u64(c, Word(at + 2 * kLane));
    }
    crc = BehindLane(BehindLane(static_cast<uint32_t>(a)) ^ static_cast<uint32_t>(b)) ^
          static_cast<uint32_t>(c);
  }
  for (; bytes.size() >= 8; bytes.remove_prefix(8)) {
    crc = static_cast<uint32_t>(_mm_crc32_u64(crc, Word(bytes.data())));
  }
  for (const char byte : bytes) crc = _mm_crc32_u8(crc, static_cast<uint8_t>(byte));
  return crc;
}
#endif

}  // namespace

uint32_t Crc32c(std::string_view bytes, uint32_t before) {
#if defined(__x86_64__)
  static const bool has_instruction = __builtin_cpu_supports("sse4.2") != 0;
  if (has_instruction) return ~AddByInstruction(bytes, ~before);
#endif
  return Crc32cByTables(bytes, before);
}

uint32_t Crc32cByTables(std::string_view bytes, uint32_t before) {
  uint32_t crc = ~before;
  const auto byte = [&](size_t i) -> uint32_t { return static_cast<uint8_t>(bytes[i]); };
  for (; bytes.size() >= 8; bytes.remove_prefix(8)) {
    crc ^= byte(0) | byte(1) << 8 | byte(2) << 16 | byte(3) << 24;
    crc = kTables[7][crc & 0xff] ^ kTables[6][(crc >> 8) & 0xff] ^ kTables[5][(crc >> 16) & 0xff] ^
          kTables[4][crc >> 24] ^ kTables[3][byte(4)] ^ kTables[2][byte(5)] ^ kTables[1][byte(6)] ^
          kTables[0][byte(7)];
  }
  for (size_t i = 0; i < bytes.size(); ++i) crc = (crc >> 8) ^ kTables[0][(crc ^ byte(i)) & 0xff];
  return ~crc;
}

}  // namespace ovq
