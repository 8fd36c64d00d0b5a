#include "base/crc32c.h"

#include <gtest/gtest.h>

#include <string>

namespace ovq {
namespace {

// RFC 3720, B.4.
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

}  // namespace
}  // namespace ovq
