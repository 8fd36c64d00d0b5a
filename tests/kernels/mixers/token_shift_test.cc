#include "kernels/mixers/common/token_shift.h"

#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "tests/kernels/mixers/mixer_test_util.h"

namespace ovq::kernels::test {
namespace {

constexpr int64_t kWidth = 70;  // of which the rows of a batch take one more

// Rows of sequences as they come from a product, and what a session kept before.
struct Shifted {
  std::vector<float> y;
  std::vector<std::vector<float>> newest;  // [sequence][kWidth]
};

// lengths: rows of each sequence; starts: their first positions.
Shifted RunShift(DeviceContext& context, const std::vector<int32_t>& lengths,
                 const std::vector<int64_t>& starts, const std::vector<float>& x,
                 std::vector<std::vector<float>> newest, bool begins_empty) {
  std::vector<int32_t> token_begin{0};
  for (int32_t n : lengths) token_begin.push_back(token_begin.back() + n);
  std::vector<DeviceArray<float>> states;
  std::vector<std::byte*> bases;
  for (const std::vector<float>& state : newest) states.emplace_back(context, state);
  for (const DeviceArray<float>& state : states) {
    bases.push_back(reinterpret_cast<std::byte*>(state.data()));
  }
  const std::vector<int32_t> caps(lengths.size(), 2);
  const StagedBatch staged = StageBatch(
      context, {.token_begin = token_begin, .start_pos = starts, .slot_cap = caps, .state = bases},
      {});
  const std::vector<float> mix_values = RandomNormal(kWidth, 11);
  const DeviceArray<float> in(context, x), mix(context, mix_values);
  const DeviceArray<float> y(context, static_cast<size_t>(token_begin.back() * kWidth));
  ShiftTokens(context, staged.seqs,
              {.x = in.data(),
               .x_stride = kWidth + 1,
               .width = kWidth,
               .mix = mix.data(),
               .newest = 0,
               .begins_empty = begins_empty,
               .y = y.data(),
               .y_dtype = DType::kF32});
  Shifted shifted{y.Read(), {}};
  for (const DeviceArray<float>& state : states) shifted.newest.push_back(state.Read());
  return shifted;
}

std::vector<float> TokenRows(const std::vector<float>& x, int64_t begin, int64_t n, int64_t width) {
  return {x.begin() + begin * width, x.begin() + (begin + n) * width};
}

class TokenShiftDevices : public testing::TestWithParam<Device> {
 protected:
  void SetUp() override {
    const std::string why_not = WhyNoDevice(GetParam());
    if (!why_not.empty()) GTEST_SKIP() << why_not;
    context_ = MakeContext(GetParam(), 2);
  }
  std::unique_ptr<DeviceContext> context_;
  std::unique_ptr<DeviceContext> ref_ = MakeContext(Device::kReference);
};
INSTANTIATE_TEST_SUITE_P(, TokenShiftDevices, testing::ValuesIn(TestDevices()),
                         [](const auto& info) { return std::string(DeviceName(info.param)); });

// Two products and two sums, each rounded once, of elements and a mix of some units.
TEST_P(TokenShiftDevices, AgreesWithReference) {
  const std::vector<float> x = RandomNormal(9 * (kWidth + 1), 1);
  const std::vector<std::vector<float>> states(3, RandomNormal(kWidth, 2));
  for (bool begins_empty : {false, true}) {
    const Shifted actual = RunShift(*context_, {1, 5, 3}, {0, 17, 0}, x, states, begins_empty);
    const Shifted expected = RunShift(*ref_, {1, 5, 3}, {0, 17, 0}, x, states, begins_empty);
    AssertClose(
        actual.y, expected.y, [](size_t) { return 40 * kRoundF32; },
        absl::StrCat("begins empty: ", begins_empty));
    EXPECT_EQ(actual.newest, expected.newest);
    EXPECT_EQ(actual.newest[1], TokenRows(TokenRows(x, 5, 1, kWidth + 1), 0, 1, kWidth));
  }
}

// However the rows of a sequence are split, and with whatever others they come.
TEST_P(TokenShiftDevices, SplitsGiveTheSameBits) {
  const std::vector<float> x = RandomNormal(7 * (kWidth + 1), 3);
  const std::vector<float> none(kWidth, 0.0f);
  for (bool begins_empty : {false, true}) {
    const Shifted whole = RunShift(*context_, {7}, {0}, x, {none}, begins_empty);
    for (int32_t split = 1; split < 7; ++split) {
      const Shifted head = RunShift(*context_, {split}, {0}, x, {none}, begins_empty);
      const std::vector<float> rest = TokenRows(x, split, 7 - split, kWidth + 1);
      std::vector<float> beside = TokenRows(x, 0, 2, kWidth + 1);
      beside.insert(beside.end(), rest.begin(), rest.end());
      const Shifted tail = RunShift(*context_, {2, 7 - split}, {0, split}, beside,
                                    {none, head.newest[0]}, begins_empty);
      std::vector<float> joined = head.y;
      joined.insert(joined.end(), tail.y.begin() + 2 * kWidth, tail.y.end());
      AssertSameBits(joined, whole.y, absl::StrCat("split at ", split));
      EXPECT_EQ(tail.newest[1], whole.newest[0]);
    }
  }
}

}  // namespace
}  // namespace ovq::kernels::test
