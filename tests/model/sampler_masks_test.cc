// Draws and best tokens of masked rows.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <span>

#include "tests/model/sampler_util.h"

namespace ovq::model::test {
namespace {

using SamplerMasks = SamplerTest;
INSTANTIATE_TEST_SUITE_P(Devices, SamplerMasks, testing::ValuesIn(kernels::test::TestDevices()),
                         [](const auto& info) { return kernels::DeviceName(info.param); });

using Words = std::vector<uint32_t>;

Words MaskWith(std::span<const int32_t> ids, size_t vocab) {
  Words words((vocab + 31) / 32);
  for (const int32_t id : ids) words[id / 32] |= uint32_t{1} << (id % 32);
  return words;
}

// Each token with this probability; at least one. Bits behind the end are set.
Words RandomMask(size_t vocab, double share, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<int32_t> ids;
  for (size_t id = 0; id < vocab; ++id) {
    if (std::bernoulli_distribution(share)(random)) ids.push_back(static_cast<int32_t>(id));
  }
  if (ids.empty()) ids.push_back(static_cast<int32_t>(random() % vocab));
  Words words = MaskWith(ids, vocab);
  if (vocab % 32 != 0) words.back() |= ~uint32_t{0} << (vocab % 32);
  return words;
}

Sampled DrawMasked(Step& step, const Sampler& sampler, const std::vector<float>& row,
                   const Words& words, int64_t position = 0, int top = 0,
                   std::span<const int32_t> banned = {}) {
  const kernels::TokenMaskBits allowed = words;
  LogitsReader reader;
  reader.WantDraws(
      {.sampler = &sampler, .top_logprobs = top, .banned = banned, .allowed = {&allowed, 1}}, 0,
      position);
  step.Read(row, static_cast<int64_t>(row.size()), reader);
  return reader.Draw(0);
}

// Every filter, penalty and list together with random masks, against the reference.
TEST_P(SamplerMasks, AgreeWithTheReference) {
  Step reference(kernels::test::MakeContext(kernels::Device::kReference));
  for (const size_t vocab : {1, 2, 31, 33, 600, 4999}) {
    std::vector<float> logits = kernels::test::RandomNormal(vocab, vocab);
    for (float& logit : logits) logit *= 3;
    std::vector<SamplingParams> cases = FilterCases();
    cases.push_back({{.temperature = 0}});
    cases.push_back({{.top_p = 0.9f, .repetition_penalty = 1.4f, .presence_penalty = 0.3f}});
    cases.back().logit_bias[0] = 2;
    for (size_t i = 0; i < cases.size(); ++i) {
      for (const double share : {0.0, 0.02, 0.5, 0.98, 1.0}) {
        cases[i].seed = 5 + i;
        Sampler sampler(cases[i], static_cast<int64_t>(vocab));
        sampler.ObservePrompt(std::vector<int32_t>{0});
        sampler.Observe(static_cast<int32_t>(vocab / 2));
        const Words words = RandomMask(vocab, share, 10 * vocab + i);
        const Sampled got = DrawMasked(*step_, sampler, logits, words, 3, 5);
        const Sampled expected = DrawMasked(reference, sampler, logits, words, 3, 5);
        EXPECT_EQ(got.token_id, expected.token_id) << vocab << ", " << i << ", " << share;
        EXPECT_TRUE(kernels::AllowsToken(words, got.token_id));
        EXPECT_NEAR(got.logprob, expected.logprob, 1e-5);
        ASSERT_EQ(got.top.size(), expected.top.size());
        for (size_t j = 0; j < got.top.size(); ++j) {
          EXPECT_EQ(got.top[j].token_id, expected.top[j].token_id);
          EXPECT_NEAR(got.top[j].logprob, expected.top[j].logprob, 1e-5);
        }
      }
    }
  }
}

// A masked draw is the draw from a vocabulary of the allowed tokens alone.
TEST_P(SamplerMasks, EqualDrawsFromFewerTokens) {
  constexpr size_t kVocab = 200;
  const std::vector<float> logits = kernels::test::RandomNormal(kVocab, 8);
  std::vector<int32_t> ids;
  std::vector<float> few;
  for (size_t id = 3; id < kVocab; id += 7) {
    ids.push_back(static_cast<int32_t>(id));
    few.push_back(logits[id]);
  }
  const Words words = MaskWith(ids, kVocab);
  for (SamplingParams params : FilterCases()) {
    params.seed = 31;
    const Sampler sampler(params, kVocab);
    Sampler alone(params, std::ssize(few));
    for (int64_t position = 0; position < 20; ++position) {
      const Sampled masked = DrawMasked(*step_, sampler, logits, words, position, 3);
      const Sampled plain = step_->Draw(alone, few, position, 3);
      ASSERT_EQ(masked.token_id, ids[plain.token_id]);
      EXPECT_NEAR(masked.logprob, plain.logprob, 1e-5);
      for (size_t i = 0; i < 3; ++i) {
        EXPECT_EQ(masked.top[i].token_id, ids[plain.top[i].token_id]);
        EXPECT_NEAR(masked.top[i].logprob, plain.top[i].logprob, 1e-5);
      }
    }
  }
}

TEST_P(SamplerMasks, OneTokenAndNone) {
  const std::vector<float> logits = {5, -3, 1, 2};
  for (const float temperature : {0.0f, 1.0f}) {
    Sampler sampler({{.temperature = temperature}}, 4);
    const Sampled one = DrawMasked(*step_, sampler, logits, {1u << 1}, 0, 3);
    EXPECT_EQ(one.token_id, 1);
    EXPECT_NEAR(one.logprob, 0, 1e-6);
    ASSERT_EQ(one.top.size(), 1u);
    EXPECT_EQ(one.top[0].token_id, 1);
    const std::vector<int32_t> banned = {0, 2};
    EXPECT_EQ(DrawMasked(*step_, sampler, logits, {0b1101}, 0, 0, banned).token_id, 3);
    const Sampled none = DrawMasked(*step_, sampler, logits, {0}, 0, 2);
    EXPECT_TRUE(none.finite);
    EXPECT_EQ(none.token_id, 3) << "the last of all";
    EXPECT_TRUE(none.top.empty());
    EXPECT_EQ(DrawMasked(*step_, sampler, logits, {0b101}, 0, 0, banned).token_id, 3);
  }
}

// A row with a logit that is not finite is reported as such, though no mask allows the token.
TEST_P(SamplerMasks, NumbersThatAreNone) {
  for (const float bad : {kNaN, kInfinity, -kInfinity}) {
    Sampler sampler({}, 3);
    EXPECT_FALSE(DrawMasked(*step_, sampler, {1, bad, 2}, {0b101}).finite);
    EXPECT_EQ(DrawMasked(*step_, sampler, {kNaN, bad, kNaN}, {0b100}).token_id, 2);
    EXPECT_TRUE(DrawMasked(*step_, sampler, {1, -3e38f, 2}, {0b010}, 0, 1).finite);
  }
  Sampler sampler({}, 3);
  EXPECT_NEAR(DrawMasked(*step_, sampler, {1, -3e38f, 2}, {0b010}).logprob, 0, 1e-6);
}

// Draws with several masks and without one, from the same rows, are as each alone.
TEST_P(SamplerMasks, SeveralMasksOfARow) {
  constexpr size_t kVocab = 333;
  constexpr int kRows = 3;
  const std::vector<float> rows = kernels::test::RandomNormal(kRows * kVocab, 4);
  const std::vector<Words> masks = {RandomMask(kVocab, 0.1, 1), RandomMask(kVocab, 0.9, 2),
                                    RandomMask(kVocab, 0, 3)};
  Sampler sampler({{.top_p = 0.9f, .seed = 6}}, kVocab);
  const auto want = [&](LogitsReader& reader, int i, int64_t row) {
    const kernels::TokenMaskBits allowed = masks[i % 3];
    const std::span<const kernels::TokenMaskBits> each(&allowed, i % 4 == 3 ? 0 : 1);
    reader.WantDraws({.sampler = &sampler, .top_logprobs = i % 3, .allowed = each}, row, i);
  };
  LogitsReader together;
  for (int i = 0; i < 24; ++i) want(together, i, i % kRows);
  step_->Read(rows, kVocab, together);
  for (int i = 0; i < 24; ++i) {
    LogitsReader single;
    want(single, i, 0);
    const auto begin = rows.begin() + i % kRows * static_cast<int>(kVocab);
    step_->Read({begin, begin + kVocab}, kVocab, single);
    const Sampled a = together.Draw(static_cast<size_t>(i)), b = single.Draw(0);
    EXPECT_EQ(a.token_id, b.token_id);
    EXPECT_EQ(a.logprob, b.logprob);
    ASSERT_EQ(a.top.size(), b.top.size());
    for (size_t j = 0; j < a.top.size(); ++j) {
      EXPECT_EQ(a.top[j].token_id, b.top[j].token_id);
      EXPECT_EQ(a.top[j].logprob, b.top[j].logprob);
    }
  }
}

// Each drafted position has a mask of its own.
TEST_P(SamplerMasks, DraftedTokensHaveTheirMasks) {
  constexpr size_t kVocab = 64;
  const std::vector<float> row = kernels::test::RandomNormal(kVocab, 12);
  std::vector<float> rows;
  std::vector<Words> words;
  std::vector<kernels::TokenMaskBits> allowed;
  for (uint64_t i = 0; i < 4; ++i) {
    rows.insert(rows.end(), row.begin(), row.end());
    words.push_back(RandomMask(kVocab, 0.2, i));
  }
  allowed.assign(words.begin(), words.end());
  Sampler sampler({{.repetition_penalty = 1.5f, .seed = 2}}, kVocab);
  const std::vector<int32_t> drafted = {4, 9, 4};
  LogitsReader reader;
  reader.WantDraws({.sampler = &sampler, .allowed = allowed}, 0, 50, drafted);
  step_->Read(rows, kVocab, reader);
  for (size_t i = 0; i < 4; ++i) {
    const auto position = 50 + static_cast<int64_t>(i);
    EXPECT_EQ(reader.Draw(i).token_id,
              DrawMasked(*step_, sampler, row, words[i], position).token_id);
    if (i < drafted.size()) sampler.Observe(drafted[i]);
  }
}

// A vocabulary of real size: few tokens, and all but few.
TEST_P(SamplerMasks, LargeVocabulary) {
  constexpr int64_t kVocab = 70001;
  Step reference(kernels::test::MakeContext(kernels::Device::kReference));
  const std::vector<float> logits = kernels::test::RandomNormal(kVocab, 5);
  for (const double share : {0.0, 0.001, 0.7, 0.9999}) {
    const Words words = RandomMask(kVocab, share, 77);
    Sampler sampler({{.temperature = 0.8f, .top_k = 3000, .top_p = 0.9f, .seed = 9}}, kVocab);
    const Sampled got = DrawMasked(*step_, sampler, logits, words, 1, 40);
    const Sampled expected = DrawMasked(reference, sampler, logits, words, 1, 40);
    EXPECT_EQ(got.token_id, expected.token_id);
    EXPECT_NEAR(got.logprob, expected.logprob, 1e-5);
    ASSERT_EQ(got.top.size(), expected.top.size());
    for (size_t i = 0; i < got.top.size(); ++i) {
      EXPECT_EQ(got.top[i].token_id, expected.top[i].token_id);
    }
  }
}

}  // namespace
}  // namespace ovq::model::test
