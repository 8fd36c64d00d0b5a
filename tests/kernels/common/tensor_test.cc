#include "kernels/common/tensor.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace ovq::kernels {
namespace {

TEST(BF16, RoundsToNearestTiesToEven) {
  EXPECT_EQ(RoundToBF16(1.0f).bits, 0x3f80);
  EXPECT_EQ(RoundToBF16(1 + 0x1p-8f).bits, 0x3f80);      // tie, down to even
  EXPECT_EQ(RoundToBF16(1 + 3 * 0x1p-8f).bits, 0x3f82);  // tie, up to even
  EXPECT_EQ(RoundToBF16(1 + 0x1p-8f + 0x1p-23f).bits, 0x3f81);
  EXPECT_EQ(RoundToBF16(-1 - 0x1p-8f - 0x1p-23f).bits, 0xbf81);
  EXPECT_EQ(RoundToBF16(-0.0f).bits, 0x8000);
  EXPECT_EQ(RoundToBF16(std::numeric_limits<float>::max()).bits, 0x7f80);  // to infinity
}

TEST(BF16, NanStaysNan) {
  for (uint32_t bits : {0x7f800001u, 0x7fffffffu, 0xff800001u, 0xffffffffu}) {
    const float nan = std::bit_cast<float>(bits);
    EXPECT_TRUE(std::isnan(ToFloat(RoundToBF16(nan)))) << std::hex << bits;
  }
}

TEST(BF16, WideningIsExact) {
  int n_nan = 0;
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const float wide = ToFloat(BF16{static_cast<uint16_t>(bits)});
    if (std::isnan(wide)) {
      ++n_nan;
      continue;
    }
    ASSERT_EQ(RoundToBF16(wide).bits, bits);
  }
  EXPECT_EQ(n_nan, 2 * 127);  // both signs of every fraction but 0
}

// Every value from its definition: (-1)^s 2^(e-15) (1 + f/1024), without the 1 where e = 0.
TEST(Half, EveryValue) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const int exponent = static_cast<int>(bits >> 10 & 0x1f);
    const double fraction = bits & 0x3ff;
    const float actual = HalfToFloat(static_cast<uint16_t>(bits));
    if (exponent == 31 && fraction != 0) {
      ASSERT_TRUE(std::isnan(actual)) << bits;
      continue;
    }
    double expected =
        exponent == 0 ? std::ldexp(fraction, -24) : std::ldexp(1024 + fraction, exponent - 25);
    if (exponent == 31) expected = std::numeric_limits<double>::infinity();
    ASSERT_EQ(actual, bits & 0x8000 ? -expected : expected) << bits;
    ASSERT_EQ(std::signbit(actual), (bits & 0x8000) != 0) << bits;
  }
}

TEST(Shape, ElementsTextAndEquality) {
  const Shape scalar;
  EXPECT_EQ(scalar.rank(), 0);
  EXPECT_EQ(scalar.elements(), 1);
  const Shape large{int64_t{1} << 20, int64_t{1} << 20};
  EXPECT_EQ(large.elements(), int64_t{1} << 40);
  EXPECT_EQ((Shape{3, 64}).ToString(), "[3, 64]");
  EXPECT_EQ(scalar.ToString(), "[]");
  EXPECT_TRUE((Shape{3, 4}) == (Shape{3, 4}));
  EXPECT_FALSE((Shape{3, 4}) == (Shape{4, 3}));
  EXPECT_FALSE((Shape{3}) == (Shape{3, 1}));
}

TEST(TensorView, Bytes) {
  EXPECT_EQ((TensorView{nullptr, DType::kF32, {3, 5}}).bytes(), 60u);
  EXPECT_EQ((TensorView{nullptr, DType::kBF16, {3, 5}}).bytes(), 30u);
  EXPECT_EQ((TensorView{nullptr, DType::kF16, {3, 0}}).bytes(), 0u);
}

}  // namespace
}  // namespace ovq::kernels
