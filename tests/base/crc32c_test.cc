#include "base/crc32c.h"

#include <gtest/gtest.h>

#include <random>
#include <string>

namespace ovq {
namespace {

// Test vectors of RFC 3720, B.4.
TEST(Crc32c, VectorsOfTheStandard) {
  std::string rising, falling;
  for (int i = 0; i < 32; ++i) rising.push_back(static_cast<char>(i));
  falling.assign(rising.rbegin(), rising.rend());
  EXPECT_EQ(Crc32c(std::string(32, '\0')), 0x8a9136aau);
  EXPECT_EQ(Crc32c(std::string(32, '\xff')), 0x62a8ab43u);
  EXPECT_EQ(Crc32c(rising), 0x46dd794eu);
  EXPECT_EQ(Crc32c(falling), 0x113fdb5cu);
  EXPECT_EQ(Crc32c("123456789"), 0xe3069283u);
  EXPECT_EQ(Crc32c(""), 0u);
}

TEST(Crc32c, PartsAreTheWhole) {
  std::string text;
  for (int i = 0; i < 61; ++i) text.push_back(static_cast<char>(i * 37));
  for (size_t cut = 0; cut <= text.size(); ++cut) {
    EXPECT_EQ(Crc32c(text.substr(cut), Crc32c(text.substr(0, cut))), Crc32c(text)) << cut;
  }
}

// Lengths around those at which lanes begin and blocks repeat.
TEST(Crc32c, BothWaysAgree) {
  std::mt19937 random(1);
  std::string text(3 * 6144 + 100, '\0');
  for (char& byte : text) byte = static_cast<char>(random());
  for (const size_t begin : {0, 1, 7}) {
    for (const size_t length : {0, 7, 8, 9, 6143, 6144, 6145, 6151, 12288, 18431, 18500}) {
      const std::string_view part = std::string_view(text).substr(begin, length);
      EXPECT_EQ(Crc32c(part), Crc32cByTables(part)) << begin << " " << length;
      EXPECT_EQ(Crc32c(part, 0x12345678u), Crc32cByTables(part, 0x12345678u));
    }
  }
}

}  // namespace
}  // namespace ovq
