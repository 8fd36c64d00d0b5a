#include "kernels/mixers/batch_sequences.h"

#include <gtest/gtest.h>

#include <vector>

#include "tests/test_util.h"

namespace ovq::kernels {
namespace {

// n(t) = min(t, cap) at multiples of `period`.
Growth Capped(int64_t period) {
  return {.name = "test",
          .live = [period](int64_t t, int64_t cap) { return std::min(t / period * period, cap); },
          .period = period};
}

TEST(StageBatch, EvaluatesEveryLawOnceAPeriod) {
  const auto context = test::MakeContext(Device::kCpu);
  const std::vector<int32_t> token_begin = {0, 3, 4}, caps = {100, 7};
  const std::vector<int64_t> start = {6, 31};
  const std::vector<std::byte*> states(2, nullptr);
  const std::vector<Growth> growths = {Capped(4), GrowsByToken(), Capped(16)};
  const StagedBatch staged = StageBatch(
      *context, {.token_begin = token_begin, .start_pos = start, .slot_cap = caps, .state = states},
      growths);
  ASSERT_EQ(staged.seqs.live.size(), 3u);
  // Rows 6, 7, 8 touch the periods from 4 and from 8; row 31 that from 28.
  const LiveSlots& fine = staged.seqs.live[0];
  EXPECT_EQ(fine.At(0, 0, 0), 4);
  EXPECT_EQ(fine.At(0, 0, 1), 8);
  EXPECT_EQ(fine.At(0, 0, 2), 12);
  EXPECT_EQ(fine.At(1, 0, 0), 7);
  EXPECT_EQ(fine.At(1, 0, 1), 7);
  EXPECT_EQ(staged.seqs.live[1].slots, nullptr);  // a slot a token: its position says it
  const LiveSlots& coarse = staged.seqs.live[2];
  EXPECT_EQ(coarse.At(0, 0, 0), 0);
  EXPECT_EQ(coarse.At(0, 0, 1), 16);
  for (const LiveSlots& live : {fine, coarse}) {
    for (int32_t i = 0; i < 2 * live.stride; ++i) EXPECT_LE(live.slots[i], live.bound);
  }
}

TEST(TokensInWave, CutsAtSpans) {
  const WaveTokens first =
      TokensInWave(/*start=*/6, /*first_token=*/10, /*n_tokens=*/7, /*span=*/4, 0);
  EXPECT_EQ(first.begin, 6);
  EXPECT_EQ(first.end, 8);
  EXPECT_EQ(first.span_begin, 4);
  EXPECT_EQ(first.row, 10);
  const WaveTokens second = TokensInWave(6, 10, 7, 4, 1);
  EXPECT_EQ(second.begin, 8);
  EXPECT_EQ(second.end, 12);
  EXPECT_EQ(second.row, 12);
  const WaveTokens past = TokensInWave(6, 10, 7, 4, 3);
  EXPECT_GE(past.begin, past.end);
}

TEST(BatchTensors, HandOnWhatALayerPut) {
  const auto context = test::MakeContext(Device::kCpu);
  ScratchScope scope(*context);
  BatchTensors tensors(scope);
  EXPECT_EQ(tensors.Get("values").data, nullptr);
  const TensorView put = tensors.Put("values", DType::kF32, {2, 3});
  put.as<float>()[5] = 7;
  {
    ScratchScope layer(*context);
    layer.Allocate<float>(1000);
  }
  const TensorView got = tensors.Get("values");
  EXPECT_EQ(got.shape, (Shape{2, 3}));
  EXPECT_EQ(got.as<float>()[5], 7);
}

TEST(CountWaves, CountsTheSpansThatRowsTouch) {
  const std::vector<int32_t> token_begin = {0, 1, 66, 67};
  const std::vector<int64_t> start_pos = {0, 63, 1000};
  const BatchSequences seqs = {.token_begin = token_begin,
                               .start_pos = start_pos,
                               .slot_cap = {},
                               .state = {},
                               .device = {}};
  EXPECT_EQ(CountWaves(seqs, 64), 2);
  EXPECT_EQ(CountWaves(seqs, 32), 3);
  EXPECT_EQ(CountWaves(seqs, 0), 1);
}

}  // namespace
}  // namespace ovq::kernels
