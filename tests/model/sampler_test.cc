#include "model/sampler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <map>
#include <memory>
#include <numeric>
#include <random>
#include <set>
#include <span>

#include "kernels/common/dispatch.h"
#include "model/step_reader.h"
#include "tests/test_util.h"

namespace ovq::test {
namespace {

using ::testing::HasSubstr;

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

float LogSumExp(const std::vector<float>& logits) {
  double sum = 0;
  for (float logit : logits) sum += std::exp(static_cast<double>(logit));
  return static_cast<float>(std::log(sum));
}

// One step on one device: rows of logits go there, what is wanted of them comes back.
class Step {
 public:
  explicit Step(Device device) : context_(MakeContext(device)) {}

  // rows: [n, vocab]
  void Read(const std::vector<float>& rows, int64_t vocab, StepReader& reader) {
    const Buffer memory = context_->Upload(rows.data(), rows.size() * sizeof(float));
    const auto n_rows = static_cast<int64_t>(rows.size()) / vocab;
    reader.Read(*context_, {memory.as<void>(), DType::kF32, Shape{n_rows, vocab}});
    std::vector<float> after(rows.size());
    context_->CopyToHost(after.data(), memory.as<void>(), rows.size() * sizeof(float));
    EXPECT_EQ(std::memcmp(after.data(), rows.data(), rows.size() * sizeof(float)), 0)
        << "logits are read only";
  }
  Sampled Draw(Sampler& sampler, const std::vector<float>& row, int64_t position,
               int top_logprobs = 0, const std::vector<int32_t>& banned = {}) {
    StepReader reader;
    reader.WantDraw(sampler, 0, position, top_logprobs, banned);
    Read(row, static_cast<int64_t>(row.size()), reader);
    return reader.NextDraw();
  }
  // The tokens at positions begin .. begin + n - 1, all from the same row.
  std::vector<int32_t> DrawMany(Sampler& sampler, const std::vector<float>& row, int64_t begin,
                                int n) {
    StepReader reader;
    for (int i = 0; i < n; ++i) reader.WantDraw(sampler, 0, begin + i, 0, {});
    Read(row, static_cast<int64_t>(row.size()), reader);
    std::vector<int32_t> tokens;
    for (int i = 0; i < n; ++i) tokens.push_back(reader.NextDraw().token_id);
    return tokens;
  }
  std::vector<TokenLogprob> Top(const std::vector<float>& row, int n) {
    StepReader reader;
    reader.WantScore(0, std::nullopt, n);
    Read(row, static_cast<int64_t>(row.size()), reader);
    return reader.NextScore().top;
  }

 private:
  std::unique_ptr<DeviceContext> context_;
};

std::vector<Device> Devices() {
  std::vector<Device> devices = {Device::kReference, Device::kCpu};
  if (kWithCuda && DeviceContext::Make(Device::kCuda, 1).ok()) devices.push_back(Device::kCuda);
  return devices;
}

class SamplerTest : public testing::TestWithParam<Device> {
 protected:
  Step step_{GetParam()};
};
INSTANTIATE_TEST_SUITE_P(Devices, SamplerTest, testing::ValuesIn(Devices()),
                         [](const auto& info) { return DeviceName(info.param); });

// A distribution by the definition of each filter, with full sorts.
struct Distribution {
  std::map<int32_t, double> p;

  void Normalize() {
    double total = 0;
    for (const auto& [id, value] : p) total += value;
    for (auto& [id, value] : p) value /= total;
  }
  // Keeps the fewest entries of lowest key whose probabilities reach `mass`.
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

// Draws many tokens and holds their counts against the expected distribution.
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
  // Mean k-1 and variance 2(k-1) plus at most sum(1/p)/draws: six deviations.
  const double freedom = static_cast<double>(expected.p.size()) - 1;
  double variance = 2 * freedom;
  for (const auto& [id, p] : expected.p) variance += 1 / (p * kDraws);
  EXPECT_LE(chi_square, freedom + 6 * std::sqrt(variance)) << what;
}

std::vector<SamplingParams> FilterCases() {
  return {
      {},
      {.temperature = 0.5f},
      {.temperature = 2.0f},
      {.top_k = 1},
      {.top_k = 5},
      {.top_k = 1000},
      {.top_p = 0.5f},
      {.top_p = 0.9f},
      {.top_p = 1e-6f},
      {.min_p = 0.1f},
      {.min_p = 1.0f},
      {.typical_p = 0.4f},
      {.typical_p = 0.9f},
      {.temperature = 1.5f, .top_k = 20, .top_p = 0.8f, .min_p = 0.05f, .typical_p = 0.9f},
      {.temperature = 0.7f, .top_k = 40, .top_p = 0.95f},
  };
}

TEST(Sampler, FiltersFollowTheirDefinitions) {
  Step step(Device::kCpu);
  const std::vector<SamplingParams> cases = FilterCases();
  for (size_t vocab : {1, 2, 7, 50, 600}) {
    for (size_t i = 0; i < cases.size(); ++i) {
      const std::vector<float> normal = RandomNormal(vocab, 100 * vocab + i);
      std::vector<float> logits(vocab);
      std::ranges::transform(normal, logits.begin(), [](float x) { return 2 * x; });
      SamplingParams params = cases[i];
      params.seed = 1000 + i;
      ExpectDistribution(step, logits, params, Expected(logits, params),
                         "vocabulary " + std::to_string(vocab) + ", case " + std::to_string(i));
    }
  }
}

// Logits as they come: normal ones, with many ties, or with values that no model should give.
std::vector<float> SomeLogits(size_t vocab, int kind, uint64_t seed) {
  std::vector<float> logits = RandomNormal(vocab, seed);
  for (size_t i = 0; i < vocab; ++i) {
    logits[i] *= 3;
    if (kind == 1) logits[i] = std::round(logits[i]);
    if (kind == 2 && i % 3 == 1) logits[i] = i % 2 == 0 ? kNaN : -kInfinity;
    if (kind == 2 && i % 5 == 4) logits[i] = i % 2 == 0 ? -0.0f : 0.0f;
    if (kind == 2 && seed % 4 == 0 && i % 7 == 5) logits[i] = kInfinity;
  }
  return logits;
}

// Every device draws the token that the definition gives. Devices differ in the rounding of sums
// (relative 2^-41 times the vocabulary at most), so a draw differs with a probability of about
// 2^-41 vocab^2, 1e-5 for the largest here: seeds are fixed, and none of these is such a draw.
TEST_P(SamplerTest, AgreesWithTheReference) {
  constexpr int kPositions = 3;
  Step reference(Device::kReference);
  for (size_t vocab : {1, 2, 7, 600, 4999}) {
    for (int kind = 0; kind < 3; ++kind) {
      const std::vector<float> logits = SomeLogits(vocab, kind, vocab + static_cast<size_t>(kind));
      std::vector<SamplingParams> cases = FilterCases();
      cases.push_back({.temperature = 0});
      std::vector<Sampler> samplers;
      for (size_t i = 0; i < cases.size(); ++i) {
        cases[i].seed = 77 + i;
        samplers.emplace_back(cases[i], static_cast<int64_t>(vocab));
      }
      StepReader expected, got;
      for (StepReader* reader : {&expected, &got}) {
        for (Sampler& sampler : samplers) {
          for (int i = 0; i < kPositions; ++i) reader->WantDraw(sampler, 0, i, 0, {});
        }
      }
      reference.Read(logits, static_cast<int64_t>(vocab), expected);
      step_.Read(logits, static_cast<int64_t>(vocab), got);
      for (size_t i = 0; i < cases.size() * kPositions; ++i) {
        EXPECT_EQ(got.NextDraw().token_id, expected.NextDraw().token_id)
            << "vocabulary " << vocab << ", kind " << kind << ", case " << i / kPositions
            << ", position " << i % kPositions;
      }
    }
  }
}

// Enough draws from one row to meet every token and the borders between them.
TEST_P(SamplerTest, ManyDrawsFromOneRow) {
  constexpr int kDraws = 300;
  const std::vector<float> logits = RandomNormal(7, 21);
  Step reference(Device::kReference);
  Sampler sampler({.seed = 4}, 7);
  const std::vector<int32_t> drawn = step_.DrawMany(sampler, logits, 0, kDraws);
  EXPECT_EQ(drawn, reference.DrawMany(sampler, logits, 0, kDraws));
  EXPECT_EQ(std::set<int32_t>(drawn.begin(), drawn.end()).size(), 7u);
}

// A vocabulary of the size that models have: several tokens a thread, and sums near the top.
TEST_P(SamplerTest, LargeVocabulary) {
  constexpr int64_t kVocab = 70001;
  Step reference(Device::kReference);
  const std::vector<std::vector<float>> rows = {RandomNormal(kVocab, 5),
                                                std::vector<float>(kVocab, -1.5f)};
  for (const std::vector<float>& logits : rows) {
    for (const SamplingParams& params :
         {SamplingParams{.temperature = 0.8f, .top_k = 3000, .top_p = 0.9f, .seed = 9},
          SamplingParams{.min_p = 0.01f, .typical_p = 0.7f, .seed = 10}}) {
      Sampler sampler(params, kVocab);
      EXPECT_EQ(step_.DrawMany(sampler, logits, 0, 2), reference.DrawMany(sampler, logits, 0, 2));
    }
    const auto top = step_.Top(logits, 40), expected = reference.Top(logits, 40);
    ASSERT_EQ(top.size(), expected.size());
    for (size_t i = 0; i < top.size(); ++i) EXPECT_EQ(top[i].token_id, expected[i].token_id);
  }
}

// Penalties, biases and bans together, with what was generated so far.
TEST_P(SamplerTest, AdjustedLogitsAgreeWithTheReference) {
  constexpr int64_t kVocab = 300;
  constexpr int kSteps = 12;
  SamplingParams params = {.temperature = 0.7f,
                           .top_p = 0.9f,
                           .repetition_penalty = 1.7f,
                           .presence_penalty = 0.6f,
                           .frequency_penalty = 0.4f,
                           .seed = 3};
  for (int32_t id = 0; id < kVocab; id += 4) {
    params.logit_bias[id] = 0.01f * static_cast<float>(id) - 1;
  }
  const std::vector<int32_t> banned = {7, 8, 9, 100, 7};
  std::vector<int32_t> prompt(200);
  std::iota(prompt.begin(), prompt.end(), 20);
  Step reference(Device::kReference);
  Sampler ours(params, kVocab), theirs(params, kVocab);
  ours.ObservePrompt(prompt);
  theirs.ObservePrompt(prompt);
  for (int position = 0; position < kSteps; ++position) {
    // Few candidates, so that tokens come again and their counts rise.
    std::vector<float> logits = RandomNormal(kVocab, static_cast<uint64_t>(position));
    for (size_t i = 0; i < logits.size(); ++i) logits[i] *= i % 50 == 7 ? 5.0f : 1.0f;
    const Sampled a = step_.Draw(ours, logits, position, 2, banned);
    const Sampled b = reference.Draw(theirs, logits, position, 2, banned);
    ASSERT_EQ(a.token_id, b.token_id) << position;
    EXPECT_EQ(a.top[1].token_id, b.top[1].token_id) << position;
    // Logarithms of sums of exponentials, about 6, within some float roundings of each other.
    EXPECT_NEAR(a.logprob, b.logprob, 1e-5);
  }
}

// What is read of a row is the same in company as alone, bit for bit.
TEST_P(SamplerTest, CompanyDoesNotMatter) {
  constexpr int64_t kVocab = 257;
  constexpr int kRows = 5;
  const std::vector<float> logits = RandomNormal(kRows * kVocab, 11);
  const auto row_of = [&](int row) {
    return std::vector<float>(logits.begin() + row * kVocab, logits.begin() + (row + 1) * kVocab);
  };
  SamplingParams params = {.top_p = 0.95f, .repetition_penalty = 1.3f};
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
  StepReader together;
  for (int i = 0; i < 3 * kRows; ++i) {  // three draws a row
    together.WantDraw(samplers[i], i % kRows, i, i % 3, banned_at(i));
    if (i % 2 == 0) together.WantScore(i % kRows, i, 4);
  }
  std::vector<Sampler> copies = samplers;  // they have not counted yet
  step_.Read(logits, kVocab, together);
  for (int i = 0; i < 3 * kRows; ++i) {
    StepReader single;
    single.WantDraw(copies[i], 0, i, i % 3, banned_at(i));
    if (i % 2 == 0) single.WantScore(0, i, 4);
    step_.Read(row_of(i % kRows), kVocab, single);
    const Sampled a = together.NextDraw(), b = single.NextDraw();
    EXPECT_EQ(a.token_id, b.token_id);
    EXPECT_EQ(a.logprob, b.logprob);
    ASSERT_EQ(a.top.size(), static_cast<size_t>(i % 3));
    for (size_t j = 0; j < a.top.size(); ++j) {
      EXPECT_EQ(a.top[j].token_id, b.top[j].token_id);
      EXPECT_EQ(a.top[j].logprob, b.top[j].logprob);
    }
    if (i % 2 != 0) continue;
    const RowScore score = together.NextScore(), alone = single.NextScore();
    ASSERT_TRUE(score.logprob && alone.logprob);
    EXPECT_EQ(*score.logprob, *alone.logprob);
    EXPECT_NEAR(*score.logprob, row_of(i % kRows)[i] - LogSumExp(row_of(i % kRows)), 1e-5);
    ASSERT_EQ(score.top.size(), 4u);
    EXPECT_EQ(score.top[3].token_id, alone.top[3].token_id);
  }
}

TEST_P(SamplerTest, GreedyTakesTheFirstOfTheBest) {
  Sampler sampler({.temperature = 0}, 5);
  const std::vector<float> logits = {1, 3, 2, 3, -1};
  const Sampled sampled = step_.Draw(sampler, logits, 0, 3);
  EXPECT_EQ(sampled.token_id, 1);
  EXPECT_NEAR(sampled.logprob, 3 - LogSumExp(logits), 1e-6);
  ASSERT_EQ(sampled.top.size(), 3u);
  EXPECT_EQ(sampled.top[0].token_id, 1);
  EXPECT_EQ(sampled.top[1].token_id, 3);
  EXPECT_EQ(sampled.top[2].token_id, 2);
}

TEST_P(SamplerTest, TiesGoToTheLowerId) {
  const std::vector<float> logits(10, 0.5f);
  for (const SamplingParams& params : {SamplingParams{.top_k = 3}, SamplingParams{.top_p = 0.25f},
                                       SamplingParams{.typical_p = 0.25f}}) {
    Sampler sampler(params, 10);
    for (int32_t token : step_.DrawMany(sampler, logits, 0, 100)) EXPECT_LT(token, 3);
  }
  for (const SamplingParams& params : {SamplingParams{.temperature = 0}, SamplingParams{.top_k = 1},
                                       SamplingParams{.top_p = 0.1f}}) {
    Sampler sampler(params, 3);
    EXPECT_EQ(step_.Draw(sampler, {-1, -0.0f, 0.0f}, 0).token_id, 1) << "both zeros are equal";
  }
  EXPECT_EQ(step_.Top({-1, -0.0f, 0.0f}, 1)[0].token_id, 1);
}

TEST_P(SamplerTest, DrawsDependOnSeedAndPositionOnly) {
  const std::vector<float> logits = RandomNormal(1000, 1);
  Sampler forward({.top_p = 0.95f, .seed = 5}, 1000), backward({.top_p = 0.95f, .seed = 5}, 1000);
  Sampler other({.top_p = 0.95f, .seed = uint64_t{5} << 32}, 1000);
  const std::vector<int32_t> a = step_.DrawMany(forward, logits, 0, 50);
  std::vector<int32_t> b(50);
  for (int i = 49; i >= 0; --i) b[i] = step_.Draw(backward, logits, i).token_id;
  EXPECT_EQ(a, b);
  EXPECT_NE(a, step_.DrawMany(other, logits, 0, 50));
  EXPECT_NE(a, step_.DrawMany(forward, logits, int64_t{1} << 32, 50));
}

// With temperature 0 the adjusted logits decide; ids 0.. have these raw logits.
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
  EXPECT_EQ(GreedyAfter(step_, {2.0f, 1.5f}, {.repetition_penalty = 2}, {}, 0), 0);
  EXPECT_EQ(GreedyAfter(step_, {2.0f, 1.5f}, {.repetition_penalty = 2}, {0}, 0), 1);
  EXPECT_EQ(GreedyAfter(step_, {2.0f, 1.5f}, {.repetition_penalty = 2}, {}, 1), 1);
  EXPECT_EQ(GreedyAfter(step_, {2.0f, 1.5f}, {.repetition_penalty = 2}, {0, 0, 0}, 1), 0);
  EXPECT_EQ(GreedyAfter(step_, {-1.0f, -1.5f}, {.repetition_penalty = 2}, {0}, 0), 1);
  EXPECT_EQ(GreedyAfter(step_, {1.0f, 1.5f}, {.repetition_penalty = 0.5f}, {0}, 0), 0);
  // Presence: generated tokens, once.
  EXPECT_EQ(GreedyAfter(step_, {2.0f, 1.5f}, {.presence_penalty = 1}, {0, 0}, 0), 0);
  EXPECT_EQ(GreedyAfter(step_, {2.0f, 1.5f}, {.presence_penalty = 1}, {}, 1), 1);
  EXPECT_EQ(GreedyAfter(step_, {2.0f, 1.5f}, {.presence_penalty = 1}, {}, 2), 0);
  // Frequency: generated tokens, times the count: 2, 1.75, 1.5 against 1.6.
  EXPECT_EQ(GreedyAfter(step_, {2.0f, 1.6f}, {.frequency_penalty = 0.25f}, {}, 1), 0);
  EXPECT_EQ(GreedyAfter(step_, {2.0f, 1.6f}, {.frequency_penalty = 0.25f}, {}, 2), 1);
}

TEST_P(SamplerTest, BiasAndBannedTokens) {
  SamplingParams params;
  params.logit_bias[2] = 5;
  EXPECT_EQ(GreedyAfter(step_, {2, 1, 0}, params, {}, 0), 2);
  EXPECT_EQ(GreedyAfter(step_, {2, 1, 0}, params, {}, 0, {2}), 0);
  EXPECT_EQ(GreedyAfter(step_, {2, 1, 0}, params, {}, 0, {0, 2}), 1);
  Sampler sampler({}, 3);
  const std::vector<float> logits = {9, 1, 0};
  const std::vector<int32_t> banned = {0};
  for (int position = 0; position < 50; ++position) {
    const Sampled sampled = step_.Draw(sampler, logits, position, 1, banned);
    EXPECT_NE(sampled.token_id, 0);
    EXPECT_EQ(sampled.top.front().token_id, 0);  // the raw distribution's best
  }
}

TEST_P(SamplerTest, OddLogitsNeverCrash) {
  const std::vector<int32_t> banned = {0};
  for (const SamplingParams& params :
       {SamplingParams{}, SamplingParams{.temperature = 0}, SamplingParams{.top_k = 2},
        SamplingParams{.top_p = 0.5f, .typical_p = 0.5f}, SamplingParams{.min_p = 0.5f},
        SamplingParams{.temperature = 1e-30f}}) {
    Sampler sampler(params, 3);
    for (const std::vector<float>& logits : std::vector<std::vector<float>>{
             {kNaN, kNaN, kNaN}, {-kInfinity, -kInfinity, -kInfinity}}) {
      EXPECT_EQ(step_.Draw(sampler, logits, 0, 3).token_id, 0);
      EXPECT_EQ(step_.Draw(sampler, logits, 0, 3, banned).token_id, 1);
    }
    EXPECT_EQ(step_.Draw(sampler, {kNaN, 1, -kInfinity}, 0, 3).token_id, 1);
    EXPECT_EQ(step_.Draw(sampler, {3, kInfinity, 2}, 0, 3).token_id, 1);
  }
  const auto top = step_.Top({kNaN, 1, -kInfinity, 2}, 4);
  EXPECT_EQ(top[0].token_id, 3);
  EXPECT_EQ(top[1].token_id, 1);
  EXPECT_EQ(top[2].token_id, 0);  // NaN counts as minus infinity: ties by lower id
  EXPECT_EQ(top[2].logprob, -kInfinity);
}

TEST_P(SamplerTest, TopLogprobsAgreeWithAFullSort) {
  std::vector<float> logits = RandomNormal(500, 9);
  for (float& logit : logits) logit = std::round(logit * 4) / 4;  // many ties
  const float log_sum_exp = LogSumExp(logits);
  std::vector<int32_t> ids(logits.size());
  std::iota(ids.begin(), ids.end(), 0);
  std::stable_sort(ids.begin(), ids.end(),
                   [&](int32_t a, int32_t b) { return logits[a] > logits[b]; });
  for (int n : {0, 1, 5, 100, 500, 600}) {
    const auto top = step_.Top(logits, n);
    ASSERT_EQ(top.size(), std::min<size_t>(static_cast<size_t>(n), 500));
    for (size_t i = 0; i < top.size(); ++i) {
      EXPECT_EQ(top[i].token_id, ids[i]);
      // A few roundings of a number below 16.
      EXPECT_NEAR(top[i].logprob, logits[ids[i]] - log_sum_exp, 1e-5);
    }
  }
}

TEST(SamplingParams, ValidateNamesFieldAndRange) {
  EXPECT_TRUE(SamplingParams().Validate(10).ok());
  const auto expect = [](SamplingParams params, const std::string& text) {
    const absl::Status status = params.Validate(10);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(status.message()), HasSubstr(text));
  };
  expect({.temperature = -1}, "temperature: expected a number in [0, 100], got -1");
  expect({.temperature = kNaN}, "temperature: ");
  expect({.top_k = -1}, "top_k: expected 0 (off) or a positive integer, got -1");
  expect({.top_p = 0}, "top_p: expected a number in (0, 1], got 0");
  expect({.top_p = 1.5f}, "top_p: ");
  expect({.min_p = -0.1f}, "min_p: expected a number in [0, 1]");
  expect({.typical_p = 0}, "typical_p: expected a number in (0, 1]");
  expect({.repetition_penalty = 0}, "repetition_penalty: expected a number in (0, 100]");
  expect({.repetition_penalty = kInfinity}, "repetition_penalty: ");
  expect({.presence_penalty = 3}, "presence_penalty: expected a number in [-2, 2]");
  expect({.frequency_penalty = -3}, "frequency_penalty: expected a number in [-2, 2]");
  expect({.logit_bias = {{10, 1.0f}}}, "logit_bias: token id 10 is outside the vocabulary of 10");
  expect({.logit_bias = {{-1, 1.0f}}}, "logit_bias: token id -1");
  expect({.logit_bias = {{3, 101.0f}}}, "logit_bias[3]: expected a number in [-100, 100]");
}

}  // namespace
}  // namespace ovq::test
