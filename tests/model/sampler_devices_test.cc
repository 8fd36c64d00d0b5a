// Every device draws the reference's tokens.
#include <gtest/gtest.h>

#include <cmath>
#include <numeric>
#include <set>
#include <span>

#include "tests/model/sampler_util.h"

namespace ovq::model::test {
namespace {

using SamplerAgreement = SamplerTest;
INSTANTIATE_TEST_SUITE_P(Devices, SamplerAgreement, testing::ValuesIn(kernels::test::TestDevices()),
                         [](const auto& info) { return kernels::DeviceName(info.param); });

// Logits by kind: normal, with many ties, or with values that no model should give.
std::vector<float> SomeLogits(size_t vocab, int kind, uint64_t seed) {
  std::vector<float> logits = kernels::test::RandomNormal(vocab, seed);
  for (size_t i = 0; i < vocab; ++i) {
    logits[i] *= 3;
    if (kind == 1) logits[i] = std::round(logits[i]);
    if (kind >= 2 && i % 3 == 1) logits[i] = i % 2 == 0 ? kNaN : -kInfinity;
    if (kind >= 2 && i % 5 == 4) logits[i] = i % 2 == 0 ? -0.0f : 0.0f;
    if (kind == 3 && i % 7 == 5) logits[i] = kInfinity;
  }
  return logits;
}

// Devices differ in the rounding of sums (relative 2^-41 times the vocabulary at most), so a draw
// differs with a probability of about 2^-41 vocab^2, 1e-5 for the largest vocabulary here. Seeds
// are fixed, and none gives such a draw.
TEST_P(SamplerAgreement, AgreesWithTheReference) {
  constexpr int kPositions = 3;
  Step reference(kernels::test::MakeContext(kernels::Device::kReference));
  for (size_t vocab : {1, 2, 7, 600, 4999}) {
    for (int kind = 0; kind < 4; ++kind) {
      const std::vector<float> logits = SomeLogits(vocab, kind, vocab + static_cast<size_t>(kind));
      std::vector<SamplingParams> cases = FilterCases();
      cases.push_back({{.temperature = 0}});
      std::vector<Sampler> samplers;
      for (size_t i = 0; i < cases.size(); ++i) {
        cases[i].seed = 77 + i;
        samplers.emplace_back(cases[i], static_cast<int64_t>(vocab));
      }
      LogitsReader expected, got;
      for (LogitsReader* reader : {&expected, &got}) {
        for (const Sampler& sampler : samplers) {
          for (int i = 0; i < kPositions; ++i) reader->WantDraws({.sampler = &sampler}, 0, i);
        }
      }
      reference.Read(logits, static_cast<int64_t>(vocab), expected);
      step_->Read(logits, static_cast<int64_t>(vocab), got);
      for (size_t i = 0; i < cases.size() * kPositions; ++i) {
        EXPECT_EQ(got.Draw(i).token_id, expected.Draw(i).token_id)
            << "vocabulary " << vocab << ", kind " << kind << ", case " << i / kPositions
            << ", position " << i % kPositions;
      }
    }
  }
}

// Enough draws from one row to reach every token and the borders between them.
TEST_P(SamplerAgreement, ManyDrawsFromOneLogitsRow) {
  constexpr int kDraws = 300;
  const std::vector<float> logits = kernels::test::RandomNormal(7, 21);
  Step reference(kernels::test::MakeContext(kernels::Device::kReference));
  Sampler sampler({{.seed = 4}}, 7);
  const std::vector<int32_t> drawn = step_->DrawMany(sampler, logits, 0, kDraws);
  EXPECT_EQ(drawn, reference.DrawMany(sampler, logits, 0, kDraws));
  EXPECT_EQ(std::set<int32_t>(drawn.begin(), drawn.end()).size(), 7u);
}

// A vocabulary of real size: several tokens a thread, and sums near the top.
TEST_P(SamplerAgreement, LargeVocabulary) {
  constexpr int64_t kVocab = 70001;
  Step reference(kernels::test::MakeContext(kernels::Device::kReference));
  const std::vector<std::vector<float>> rows = {kernels::test::RandomNormal(kVocab, 5),
                                                std::vector<float>(kVocab, -1.5f)};
  for (const std::vector<float>& logits : rows) {
    for (const SamplingParams& params :
         {SamplingParams{{.temperature = 0.8f, .top_k = 3000, .top_p = 0.9f, .seed = 9}},
          SamplingParams{{.min_p = 0.01f, .typical_p = 0.7f, .seed = 10}}}) {
      Sampler sampler(params, kVocab);
      EXPECT_EQ(step_->DrawMany(sampler, logits, 0, 2), reference.DrawMany(sampler, logits, 0, 2));
    }
    const auto top = step_->Top(logits, 40), expected = reference.Top(logits, 40);
    ASSERT_EQ(top.size(), expected.size());
    for (size_t i = 0; i < top.size(); ++i) EXPECT_EQ(top[i].token_id, expected[i].token_id);
  }
}

// Penalties, biases and bans together, with counts of generated tokens.
TEST_P(SamplerAgreement, AdjustedLogitsAgreeWithTheReference) {
  constexpr int64_t kVocab = 300;
  constexpr int kSteps = 12;
  SamplingParams params = {{.temperature = 0.7f,
                            .top_p = 0.9f,
                            .repetition_penalty = 1.7f,
                            .presence_penalty = 0.6f,
                            .frequency_penalty = 0.4f,
                            .seed = 3}};
  for (int32_t id = 0; id < kVocab; id += 4) {
    params.logit_bias[id] = 0.01f * static_cast<float>(id) - 1;
  }
  const std::vector<int32_t> banned = {7, 8, 9, 100};
  std::vector<int32_t> prompt(200);
  std::iota(prompt.begin(), prompt.end(), 20);
  Step reference(kernels::test::MakeContext(kernels::Device::kReference));
  Sampler ours(params, kVocab), theirs(params, kVocab);
  ours.ObservePrompt(prompt);
  theirs.ObservePrompt(prompt);
  for (int position = 0; position < kSteps; ++position) {
    // Few candidates, so that tokens repeat and their counts rise.
    std::vector<float> logits =
        kernels::test::RandomNormal(kVocab, static_cast<uint64_t>(position));
    for (size_t i = 0; i < logits.size(); ++i) logits[i] *= i % 50 == 7 ? 5.0f : 1.0f;
    const Sampled a = step_->Draw(ours, logits, position, 2, banned);
    const Sampled b = reference.Draw(theirs, logits, position, 2, banned);
    ASSERT_EQ(a.token_id, b.token_id) << position;
    EXPECT_EQ(a.top[1].token_id, b.top[1].token_id) << position;
    // Logarithms of sums of exponentials, about 6, within some float roundings.
    EXPECT_NEAR(a.logprob, b.logprob, 1e-5);
  }
}

// The result of a row is the same in company as alone, bit for bit.
TEST_P(SamplerAgreement, CompanyDoesNotMatter) {
  constexpr int64_t kVocab = 257;
  constexpr int kRows = 5;
  const std::vector<float> logits = kernels::test::RandomNormal(kRows * kVocab, 11);
  const auto row_of = [&](int row) {
    return std::vector<float>(logits.begin() + row * kVocab, logits.begin() + (row + 1) * kVocab);
  };
  SamplingParams params = {{.top_p = 0.95f, .repetition_penalty = 1.3f}};
  std::vector<Sampler> samplers;
  for (int i = 0; i < 3 * kRows; ++i) {
    params.seed = 50 + static_cast<uint64_t>(i);
    params.temperature = i % 4 == 0 ? 0.0f : 0.5f + 0.1f * static_cast<float>(i);
    samplers.emplace_back(params, kVocab);
    samplers.back().ObservePrompt(std::vector<int32_t>(static_cast<size_t>(i % 3), i));
  }
  const std::vector<int32_t> banned = {1, 2, 3};
  const auto banned_at = [&](int i) {
    return i % 2 == 0 ? std::span<const int32_t>(banned) : std::span<const int32_t>();
  };
  const auto wanted = [&](int i) {
    return DrawRequest{.sampler = &samplers[static_cast<size_t>(i)],
                       .top_logprobs = i % 3,
                       .banned = banned_at(i)};
  };
  LogitsReader together;
  for (int i = 0; i < 3 * kRows; ++i) {  // three draws a row
    together.WantDraws(wanted(i), i % kRows, i);
    if (i % 2 == 0) together.WantScore(i % kRows, i, 4);
  }
  step_->Read(logits, kVocab, together);
  for (int i = 0; i < 3 * kRows; ++i) {
    LogitsReader single;
    single.WantDraws(wanted(i), 0, i);
    if (i % 2 == 0) single.WantScore(0, i, 4);
    step_->Read(row_of(i % kRows), kVocab, single);
    const Sampled a = together.Draw(static_cast<size_t>(i)), b = single.Draw(0);
    EXPECT_EQ(a.token_id, b.token_id);
    EXPECT_EQ(a.logprob, b.logprob);
    ASSERT_EQ(a.top.size(), static_cast<size_t>(i % 3));
    for (size_t j = 0; j < a.top.size(); ++j) {
      EXPECT_EQ(a.top[j].token_id, b.top[j].token_id);
      EXPECT_EQ(a.top[j].logprob, b.top[j].logprob);
    }
    if (i % 2 != 0) continue;
    const TokenScore score = together.Score(static_cast<size_t>(i / 2)), alone = single.Score(0);
    ASSERT_TRUE(score.logprob && alone.logprob);
    EXPECT_EQ(*score.logprob, *alone.logprob);
    EXPECT_NEAR(*score.logprob, row_of(i % kRows)[i] - LogSumExp(row_of(i % kRows)), 1e-5);
    ASSERT_EQ(score.top.size(), 4u);
    EXPECT_EQ(score.top[3].token_id, alone.top[3].token_id);
  }
}

}  // namespace
}  // namespace ovq::model::test
