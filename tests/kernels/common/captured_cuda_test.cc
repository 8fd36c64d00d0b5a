// Recorded batches: a replay computes with the device's memory of that moment, also when the
// staging memory has moved and when more keys came than are kept.
#include <gtest/gtest.h>

#include <vector>

#include "kernels/mixers/batch_sequences.h"
#include "kernels/ops/ops.h"
#include "tests/test_util.h"

namespace ovq::kernels {
namespace {

constexpr int64_t kVocab = 50, kWidth = 8;

class RunCaptured : public ::testing::Test {
 protected:
  void SetUp() override {
    const std::string missing = test::WhyNoDevice(Device::kCuda);
    if (!missing.empty()) GTEST_SKIP() << missing;
    context_ = test::MakeContext(Device::kCuda);
    table_ = test::RandomNormal(kVocab * kWidth, 5);
    device_table_ = context_->Upload(table_.data(), table_.size() * sizeof(float));
  }

  // Looks up a batch of n tokens in the table under `key`. Counts the batches that were not
  // replayed.
  void ExpectLookups(int64_t key, int n, int32_t first) {
    std::vector<int32_t> ids(static_cast<size_t>(n));
    for (int i = 0; i < n; ++i) ids[i] = static_cast<int32_t>((first + i) % kVocab);
    const StagedBatch staged = StageBatch(*context_, {}, {}, ids);
    ScratchScope scope(*context_);
    const TensorView y = {scope.Allocate<float>(ids.size() * kWidth), DType::kF32, {n, kWidth}};
    const TensorView table = {device_table_.as<void>(), DType::kF32, {kVocab, kWidth}};
    context_->RunCaptured({key, n}, [&] {
      ++n_launched_;
      Embed(*context_, table, staged.token_ids, y);
    });
    std::vector<float> got(ids.size() * kWidth);
    context_->CopyToHost(got.data(), y.data, got.size() * sizeof(float));
    for (size_t i = 0; i < ids.size(); ++i) {
      const auto row = table_.begin() + ids[i] * kWidth;
      ASSERT_EQ(std::vector<float>(got.begin() + i * kWidth, got.begin() + (i + 1) * kWidth),
                std::vector<float>(row, row + kWidth))
          << "key " << key << ", token " << i << " of " << n;
    }
  }

  std::unique_ptr<DeviceContext> context_;
  std::vector<float> table_;
  Buffer device_table_;
  int n_launched_ = 0;
};

TEST_F(RunCaptured, ReplaysReadWhatIsThereNow) {
  for (int32_t use = 0; use < 5; ++use) ExpectLookups(1, 3, 7 * use);
  EXPECT_EQ(n_launched_, 2);  // launched directly, then recorded
}

TEST_F(RunCaptured, SurvivesStepsLargerThanEverBefore) {
  for (int32_t use = 0; use < 3; ++use) ExpectLookups(1, 3, use);
  ExpectLookups(2, 100'000, 1);  // the staging memory moves
  for (int32_t use = 0; use < 3; ++use) ExpectLookups(1, 3, 20 + use);
}

TEST_F(RunCaptured, ForgetsWhenThereAreTooManyKinds) {
  for (int64_t key = 0; key < 300; ++key) {
    ExpectLookups(key, 2, static_cast<int32_t>(key));
    ExpectLookups(key, 2, static_cast<int32_t>(key) + 1);
  }
  n_launched_ = 0;
  for (int32_t use = 0; use < 3; ++use) ExpectLookups(0, 2, use);
  EXPECT_EQ(n_launched_, 2);
}

}  // namespace
}  // namespace ovq::kernels
