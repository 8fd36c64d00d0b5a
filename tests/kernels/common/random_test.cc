#include "kernels/common/random.h"

#include <gtest/gtest.h>

#include <limits>

namespace ovq::kernels {
namespace {

using Words = std::array<uint32_t, 4>;

// The known answers published with Random123 (kat_vectors, philox4x32 10).
TEST(Philox4x32, KnownAnswers) {
  EXPECT_EQ(Philox4x32({0, 0, 0, 0}, {0, 0}),
            (Words{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  constexpr uint32_t kOnes = std::numeric_limits<uint32_t>::max();
  EXPECT_EQ(Philox4x32({kOnes, kOnes, kOnes, kOnes}, {kOnes, kOnes}),
            (Words{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(Philox4x32({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
            (Words{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(UnitInterval, CoversZeroToBelowOne) {
  constexpr uint32_t kOnes = std::numeric_limits<uint32_t>::max();
  EXPECT_EQ(UnitInterval(0, 0), 0.0);
  EXPECT_EQ(UnitInterval(0x80000000, 0), 0.5);
  EXPECT_EQ(UnitInterval(kOnes, kOnes), 1.0 - 0x1p-53);
}

}  // namespace
}  // namespace ovq::kernels
