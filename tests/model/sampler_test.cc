#include "model/sampler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>

#include "tests/model/sampler_util.h"

namespace ovq::model::test {
namespace {

using ::testing::HasSubstr;

INSTANTIATE_TEST_SUITE_P(Devices, SamplerTest, testing::ValuesIn(kernels::test::TestDevices()),
                         [](const auto& info) { return kernels::DeviceName(info.param); });

// The distribution by the definition of each filter, with full sorts.
struct Distribution {
  std::map<int32_t, double> p;

  void Normalize() {
    double total = 0;
    for (const auto& [id, value] : p) total += value;
    for (auto& [id, value] : p) value /= total;
  }
  // Keeps the fewest entries of lowest key whose probabilities sum to `mass`.
  template <class Key>
  void KeepMass(double mass, Key key) {
    std::vector<int32_t> ids;
    for (const auto& [id, value] : p) ids.push_back(id);
    std::stable_sort(ids.begin(), ids.end(), [&](int32_t a, int32_t b) { return key(a) < key(b); });
    double sum = 0;
    for (int32_t id : ids) {
      const double value = p[id];
      if (sum >= mass) p.erase(id);
      sum += value;
    }
    Normalize();
  }
};

Distribution Expected(const std::vector<float>& logits, const SamplingParams& params) {
  Distribution d;
  for (size_t i = 0; i < logits.size(); ++i) {
    d.p[static_cast<int32_t>(i)] = std::exp(static_cast<double>(logits[i]) / params.temperature);
  }
  d.Normalize();
  if (params.top_k > 0) {
    std::vector<int32_t> ids(logits.size());
    std::iota(ids.begin(), ids.end(), 0);
    std::stable_sort(ids.begin(), ids.end(),
                     [&](int32_t a, int32_t b) { return logits[a] > logits[b]; });
    for (size_t i = static_cast<size_t>(params.top_k); i < ids.size(); ++i) d.p.erase(ids[i]);
    d.Normalize();
  }
  if (params.typical_p < 1) {
    double entropy = 0;
    for (const auto& [id, p] : d.p) entropy -= p * std::log(p);
    d.KeepMass(params.typical_p,
               [&](int32_t id) { return std::abs(-std::log(d.p[id]) - entropy); });
  }
  if (params.top_p < 1) d.KeepMass(params.top_p, [&](int32_t id) { return -logits[id]; });
  double best = 0;
  for (const auto& [id, p] : d.p) best = std::max(best, p);
  std::erase_if(d.p, [&](const auto& entry) { return entry.second < params.min_p * best; });
  d.Normalize();
  return d;
}

// Draws many tokens and tests their counts against the expected distribution.
void ExpectDistribution(Step& step, const std::vector<float>& logits, const SamplingParams& params,
                        const Distribution& expected, const std::string& what) {
  constexpr int kDraws = 4000;
  Sampler sampler(params, static_cast<int64_t>(logits.size()));
  std::map<int32_t, int> counts;
  for (int32_t token : step.DrawMany(sampler, logits, 0, kDraws)) ++counts[token];
  double chi_square = 0;
  for (const auto& [id, p] : expected.p) {
    const double difference = counts[id] - kDraws * p;
    chi_square += difference * difference / (kDraws * p);
  }
  for (const auto& [id, count] : counts) {
    EXPECT_TRUE(expected.p.contains(id)) << what << ": token " << id << " must not be drawn";
  }
  // Chi-square: mean k-1 and variance 2(k-1) plus at most sum(1/p)/draws; allows six deviations.
  const double freedom = static_cast<double>(expected.p.size()) - 1;
  double variance = 2 * freedom;
  for (const auto& [id, p] : expected.p) variance += 1 / (p * kDraws);
  EXPECT_LE(chi_square, freedom + 6 * std::sqrt(variance)) << what;
}

TEST(Sampler, FiltersFollowTheirDefinitions) {
  Step step(kernels::test::MakeContext(kernels::Device::kCpu));
  const std::vector<SamplingParams> cases = FilterCases();
  for (size_t vocab : {1, 2, 7, 50, 600}) {
    for (size_t i = 0; i < cases.size(); ++i) {
      const std::vector<float> normal = kernels::test::RandomNormal(vocab, 100 * vocab + i);
      std::vector<float> logits(vocab);
      std::ranges::transform(normal, logits.begin(), [](float x) { return 2 * x; });
      SamplingParams params = cases[i];
      params.seed = 1000 + i;
      ExpectDistribution(step, logits, params, Expected(logits, params),
                         "vocabulary " + std::to_string(vocab) + ", case " + std::to_string(i));
    }
  }
}

TEST_P(SamplerTest, GreedyTakesTheFirstOfTheBest) {
  Sampler sampler({{.temperature = 0}}, 5);
  const std::vector<float> logits = {1, 3, 2, 3, -1};
  const Sampled sampled = step_->Draw(sampler, logits, 0, 3);
  EXPECT_EQ(sampled.token_id, 1);
  EXPECT_NEAR(sampled.logprob, 3 - LogSumExp(logits), 1e-6);
  ASSERT_EQ(sampled.top.size(), 3u);
  EXPECT_EQ(sampled.top[0].token_id, 1);
  EXPECT_EQ(sampled.top[1].token_id, 3);
  EXPECT_EQ(sampled.top[2].token_id, 2);
}

TEST_P(SamplerTest, TiesGoToTheLowerId) {
  const std::vector<float> logits(10, 0.5f);
  for (const SamplingParams& params :
       {SamplingParams{{.top_k = 3}}, SamplingParams{{.top_p = 0.25f}},
        SamplingParams{{.typical_p = 0.25f}}}) {
    Sampler sampler(params, 10);
    for (int32_t token : step_->DrawMany(sampler, logits, 0, 100)) EXPECT_LT(token, 3);
  }
  for (const SamplingParams& params :
       {SamplingParams{{.temperature = 0}}, SamplingParams{{.top_k = 1}},
        SamplingParams{{.top_p = 0.1f}}}) {
    Sampler sampler(params, 3);
    EXPECT_EQ(step_->Draw(sampler, {-1, -0.0f, 0.0f}, 0).token_id, 1) << "both zeros are equal";
  }
  EXPECT_EQ(step_->Top({-1, -0.0f, 0.0f}, 1)[0].token_id, 1);
}

TEST_P(SamplerTest, DrawsDependOnSeedAndPositionOnly) {
  const std::vector<float> logits = kernels::test::RandomNormal(1000, 1);
  Sampler forward({{.top_p = 0.95f, .seed = 5}}, 1000),
      backward({{.top_p = 0.95f, .seed = 5}}, 1000);
  Sampler other({{.top_p = 0.95f, .seed = uint64_t{5} << 32}}, 1000);
  const std::vector<int32_t> a = step_->DrawMany(forward, logits, 0, 50);
  std::vector<int32_t> b(50);
  for (int i = 49; i >= 0; --i) b[i] = step_->Draw(backward, logits, i).token_id;
  EXPECT_EQ(a, b);
  EXPECT_NE(a, step_->DrawMany(other, logits, 0, 50));
  EXPECT_NE(a, step_->DrawMany(forward, logits, int64_t{1} << 32, 50));
}

// The token drawn at temperature 0, from raw logits of ids 0, 1, ...
int32_t GreedyAfter(Step& step, const std::vector<float>& logits, SamplingParams params,
                    std::vector<int32_t> prompt, int generated, std::vector<int32_t> banned = {}) {
  params.temperature = 0;
  Sampler sampler(params, static_cast<int64_t>(logits.size()));
  sampler.ObservePrompt(prompt);
  int32_t last = -1;
  for (int i = 0; i <= generated; ++i) last = step.Draw(sampler, logits, i, 0, banned).token_id;
  return last;
}

TEST_P(SamplerTest, PenaltiesCountWhatTheyShould) {
  // Repetition: positive logits are divided, negative ones multiplied; prompt and generated count.
  EXPECT_EQ(GreedyAfter(*step_, {2.0f, 1.5f}, {{.repetition_penalty = 2}}, {}, 0), 0);
  EXPECT_EQ(GreedyAfter(*step_, {2.0f, 1.5f}, {{.repetition_penalty = 2}}, {0}, 0), 1);
  EXPECT_EQ(GreedyAfter(*step_, {2.0f, 1.5f}, {{.repetition_penalty = 2}}, {}, 1), 1);
  EXPECT_EQ(GreedyAfter(*step_, {2.0f, 1.5f}, {{.repetition_penalty = 2}}, {0, 0, 0}, 1), 0);
  EXPECT_EQ(GreedyAfter(*step_, {-1.0f, -1.5f}, {{.repetition_penalty = 2}}, {0}, 0), 1);
  EXPECT_EQ(GreedyAfter(*step_, {1.0f, 1.5f}, {{.repetition_penalty = 0.5f}}, {0}, 0), 0);
  // Presence: generated tokens, once.
  EXPECT_EQ(GreedyAfter(*step_, {2.0f, 1.5f}, {{.presence_penalty = 1}}, {0, 0}, 0), 0);
  EXPECT_EQ(GreedyAfter(*step_, {2.0f, 1.5f}, {{.presence_penalty = 1}}, {}, 1), 1);
  EXPECT_EQ(GreedyAfter(*step_, {2.0f, 1.5f}, {{.presence_penalty = 1}}, {}, 2), 0);
  // Frequency: generated tokens, times the count: 2, 1.75, 1.5 against 1.6.
  EXPECT_EQ(GreedyAfter(*step_, {2.0f, 1.6f}, {{.frequency_penalty = 0.25f}}, {}, 1), 0);
  EXPECT_EQ(GreedyAfter(*step_, {2.0f, 1.6f}, {{.frequency_penalty = 0.25f}}, {}, 2), 1);
}

// Draws after drafted tokens are the draws of a sampler that has observed them.
TEST_P(SamplerTest, DraftedTokensCountAsGenerated) {
  constexpr int64_t kIds = 16;
  const std::vector<float> row = kernels::test::RandomNormal(kIds, 3);
  const std::vector<int32_t> drafted = {4, 7, 4, 1, 7}, early = {2}, late = {3};
  for (SamplingParams params :
       {SamplingParams{{.repetition_penalty = 1.7f}}, SamplingParams{{.presence_penalty = 0.8f}},
        SamplingParams{{.frequency_penalty = 0.6f}},
        SamplingParams{
            {.repetition_penalty = 1.2f, .presence_penalty = 0.3f, .frequency_penalty = 0.2f}}}) {
    params.seed = 9;
    Sampler sampler(params, kIds);
    sampler.ObservePrompt(std::vector<int32_t>{1, 5});
    sampler.Observe(4);
    std::vector<float> rows;
    for (size_t i = 0; i <= drafted.size(); ++i) rows.insert(rows.end(), row.begin(), row.end());
    LogitsReader reader;
    const DrawRequest request = {
        .sampler = &sampler, .banned = late, .banned_early = early, .n_early = 2};
    EXPECT_EQ(reader.WantDraws(request, 0, 100, drafted), 0u);
    step_->Read(rows, kIds, reader);
    for (size_t i = 0; i <= drafted.size(); ++i) {
      LogitsReader single;
      single.WantDraws({.sampler = &sampler, .banned = i < 2 ? early : late}, 0,
                       100 + static_cast<int64_t>(i));
      step_->Read(row, kIds, single);
      EXPECT_EQ(reader.Draw(i).token_id, single.Draw(0).token_id) << i;
      if (i < drafted.size()) sampler.Observe(drafted[i]);
    }
  }
}

TEST_P(SamplerTest, BiasAndBannedTokens) {
  SamplingParams params;
  params.logit_bias[2] = 5;
  EXPECT_EQ(GreedyAfter(*step_, {2, 1, 0}, params, {}, 0), 2);
  EXPECT_EQ(GreedyAfter(*step_, {2, 1, 0}, params, {}, 0, {2}), 0);
  EXPECT_EQ(GreedyAfter(*step_, {2, 1, 0}, params, {}, 0, {0, 2}), 1);
  Sampler sampler({}, 3);
  const std::vector<float> logits = {9, 1, 0};
  const std::vector<int32_t> banned = {0};
  for (int position = 0; position < 50; ++position) {
    const Sampled sampled = step_->Draw(sampler, logits, position, 1, banned);
    EXPECT_NE(sampled.token_id, 0);
    EXPECT_EQ(sampled.top.front().token_id, 0);  // the raw distribution's best
  }
}

TEST_P(SamplerTest, OddLogitsNeverCrash) {
  const std::vector<int32_t> banned = {0};
  for (const SamplingParams& params :
       {SamplingParams{}, SamplingParams{{.temperature = 0}}, SamplingParams{{.top_k = 2}},
        SamplingParams{{.top_p = 0.5f, .typical_p = 0.5f}}, SamplingParams{{.min_p = 0.5f}},
        SamplingParams{{.temperature = 1e-30f}}}) {
    Sampler sampler(params, 3);
    for (const std::vector<float>& logits :
         std::vector<std::vector<float>>{{kNaN, kNaN, kNaN},
                                         {-kInfinity, -kInfinity, -kInfinity},
                                         {kNaN, -kInfinity, -kInfinity}}) {
      EXPECT_EQ(step_->Draw(sampler, logits, 0, 3).token_id, 0);
      EXPECT_FALSE(step_->Draw(sampler, logits, 0, 3).finite);
      EXPECT_EQ(step_->Draw(sampler, logits, 0, 3, banned).token_id, 1);
    }
    EXPECT_FALSE(step_->Draw(sampler, {3, -kInfinity, 2}, 0, 3).finite);
    EXPECT_TRUE(step_->Draw(sampler, {3, -3e38f, 2}, 0, 3).finite);
    EXPECT_EQ(step_->Draw(sampler, {kNaN, 1, -kInfinity}, 0, 3).token_id, 1);
    EXPECT_EQ(step_->Draw(sampler, {3, kInfinity, 2}, 0, 3).token_id, 1);
  }
  const auto top = step_->Top({kNaN, 1, -kInfinity, 2}, 4);
  EXPECT_EQ(top[0].token_id, 3);
  EXPECT_EQ(top[1].token_id, 1);
  EXPECT_EQ(top[2].token_id, 0);  // NaN counts as minus infinity: ties by lower id
}

TEST_P(SamplerTest, TopLogprobsAgreeWithAFullSort) {
  std::vector<float> logits = kernels::test::RandomNormal(500, 9);
  for (float& logit : logits) logit = std::round(logit * 4) / 4;  // many ties
  const float log_sum_exp = LogSumExp(logits);
  std::vector<int32_t> ids(logits.size());
  std::iota(ids.begin(), ids.end(), 0);
  std::stable_sort(ids.begin(), ids.end(),
                   [&](int32_t a, int32_t b) { return logits[a] > logits[b]; });
  for (int n : {0, 1, 5, 100, 500, 600}) {
    const auto top = step_->Top(logits, n);
    ASSERT_EQ(top.size(), std::min<size_t>(static_cast<size_t>(n), 500));
    for (size_t i = 0; i < top.size(); ++i) {
      EXPECT_EQ(top[i].token_id, ids[i]);
      // A few roundings of a number below 16.
      EXPECT_NEAR(top[i].logprob, logits[ids[i]] - log_sum_exp, 1e-5);
    }
  }
}

}  // namespace
}  // namespace ovq::model::test
