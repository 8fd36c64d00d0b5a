// Batches with more sequences, or rows, than a grid has thread blocks in y.
#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "kernels/mixers/batch_sequences.h"
#include "kernels/mixers/common/token_shift.h"
#include "kernels/ops/ops.h"
#include "tests/test_util.h"

namespace ovq::kernels::test {
namespace {

class LargeGridsOnCuda : public testing::Test {
 protected:
  void SetUp() override {
    const std::string missing = WhyNoDevice(Device::kCuda);
    if (!missing.empty()) GTEST_SKIP() << missing;
    context_ = MakeContext(Device::kCuda);
  }
  Buffer Upload(const std::vector<float>& x) {
    return context_->Upload(x.data(), x.size() * sizeof(float));
  }
  std::vector<float> Read(const Buffer& x) {
    std::vector<float> values(x.bytes() / sizeof(float));
    context_->CopyToHost(values.data(), x.as<void>(), x.bytes());
    return values;
  }

  std::unique_ptr<DeviceContext> context_;
};

// All sequences but the first and the last are padding.
TEST_F(LargeGridsOnCuda, EverySequenceIsAdvanced) {
  constexpr int kSequences = 65'537;
  const Buffer states = Upload({5, 7}), y(Device::kCuda, kSequences * sizeof(float));
  std::vector<std::byte*> state(kSequences, nullptr);
  state.front() = states.as<std::byte>();
  state.back() = states.as<std::byte>() + sizeof(float);
  std::vector<int32_t> token_begin(kSequences + 1);
  std::vector<float> x(kSequences);
  for (int s = 0; s <= kSequences; ++s) token_begin[s] = s;
  for (int s = 0; s < kSequences; ++s) x[s] = static_cast<float>(s);
  const std::vector<int64_t> start_pos(kSequences, 1);
  const std::vector<int32_t> slot_cap(kSequences, 1);
  const StagedBatch staged = StageBatch(
      *context_,
      {.token_begin = token_begin, .start_pos = start_pos, .slot_cap = slot_cap, .state = state},
      {});
  const Buffer inputs = Upload(x), mix = Upload({1});
  ShiftTokens(*context_, staged.seqs,
              {.x = inputs.as<void>(),
               .x_stride = 1,
               .width = 1,
               .mix = mix.as<float>(),
               .newest = 0,
               .begins_empty = true,
               .y = y.as<void>(),
               .y_dtype = DType::kF32});
  EXPECT_EQ(Read(states), (std::vector<float>{x.front(), x.back()}));
  const std::vector<float> shifted = Read(y);
  EXPECT_EQ(shifted.front(), 5);
  EXPECT_EQ(shifted.back(), 7);
}

TEST_F(LargeGridsOnCuda, EveryRowIsMultiplied) {
  constexpr int64_t kRows = 65'535 * 16 + 1;  // 16 to a thread block
  std::vector<float> weight = {2};
  const auto product = Linear::Make({{MakeView(weight, {1, 1})}}, DType::kF32, *context_);
  ASSERT_TRUE(product.ok()) << product.status();
  std::vector<float> x(kRows, 1);
  x.back() = 3;
  const Buffer inputs = Upload(x), y(Device::kCuda, kRows * sizeof(float));
  product->Apply(*context_, TensorView{inputs.as<void>(), DType::kF32, {kRows, 1}},
                 {y.as<void>(), DType::kF32, {kRows, 1}});
  const std::vector<float> sums = Read(y);
  EXPECT_EQ(sums.front(), 2);
  EXPECT_EQ(sums[kRows - 2], 2);
  EXPECT_EQ(sums.back(), 6);
}

}  // namespace
}  // namespace ovq::kernels::test
