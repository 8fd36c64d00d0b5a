// Helpers of the sampler's tests: logits on any device, and settings of every filter.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "model/logits_reader.h"
#include "tests/device_tests.h"

namespace ovq::model::test {

inline constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
inline constexpr float kInfinity = std::numeric_limits<float>::infinity();

inline float LogSumExp(const std::vector<float>& logits) {
  double sum = 0;
  for (float logit : logits) sum += std::exp(static_cast<double>(logit));
  return static_cast<float>(std::log(sum));
}

// Reads logits on one device: copies rows of logits there and reads what is wanted of them.
class Step {
 public:
  explicit Step(std::unique_ptr<kernels::DeviceContext> context) : context_(std::move(context)) {}

  // rows: [n, vocab]
  void Read(const std::vector<float>& rows, int64_t vocab, LogitsReader& reader) {
    const kernels::Buffer memory = context_->Upload(rows.data(), rows.size() * sizeof(float));
    const auto n_rows = static_cast<int64_t>(rows.size()) / vocab;
    reader.Read(*context_,
                {memory.as<void>(), kernels::DType::kF32, kernels::Shape{n_rows, vocab}});
    std::vector<float> after(rows.size());
    context_->CopyToHost(after.data(), memory.as<void>(), rows.size() * sizeof(float));
    EXPECT_EQ(std::memcmp(after.data(), rows.data(), rows.size() * sizeof(float)), 0)
        << "logits are read only";
  }
  Sampled Draw(Sampler& sampler, const std::vector<float>& row, int64_t position,
               int top_logprobs = 0, const std::vector<int32_t>& banned = {}) {
    LogitsReader reader;
    reader.WantDraws({.sampler = &sampler, .top_logprobs = top_logprobs, .banned = banned}, 0,
                     position);
    Read(row, static_cast<int64_t>(row.size()), reader);
    Sampled drawn = reader.Draw(0);
    sampler.Observe(drawn.token_id);
    return drawn;
  }
  // Draws the tokens at positions begin .. begin + n - 1, all from the same row of logits.
  std::vector<int32_t> DrawMany(Sampler& sampler, const std::vector<float>& row, int64_t begin,
                                int n) {
    LogitsReader reader;
    for (int i = 0; i < n; ++i) reader.WantDraws({.sampler = &sampler}, 0, begin + i);
    Read(row, static_cast<int64_t>(row.size()), reader);
    std::vector<int32_t> tokens;
    for (size_t i = 0; i < static_cast<size_t>(n); ++i) {
      tokens.push_back(reader.Draw(i).token_id);
    }
    for (const int32_t token : tokens) sampler.Observe(token);
    return tokens;
  }
  std::vector<TokenLogprob> Top(const std::vector<float>& row, int n) {
    LogitsReader reader;
    reader.WantScore(0, std::nullopt, n);
    Read(row, static_cast<int64_t>(row.size()), reader);
    return reader.Score(0).top;
  }

 private:
  std::unique_ptr<kernels::DeviceContext> context_;
};

class SamplerTest : public kernels::test::DeviceTest {
 protected:
  void SetUp() override {
    kernels::test::DeviceTest::SetUp();
    if (!IsSkipped()) step_.emplace(std::move(context_));
  }
  std::optional<Step> step_;
};

inline std::vector<SamplingParams> FilterCases() {
  return {
      {},
      {{.temperature = 0.5f}},
      {{.temperature = 2.0f}},
      {{.top_k = 1}},
      {{.top_k = 5}},
      {{.top_k = 1000}},
      {{.top_p = 0.5f}},
      {{.top_p = 0.9f}},
      {{.top_p = 1e-6f}},
      {{.min_p = 0.1f}},
      {{.min_p = 1.0f}},
      {{.typical_p = 0.4f}},
      {{.typical_p = 0.9f}},
      {{.temperature = 1.5f, .top_k = 20, .top_p = 0.8f, .min_p = 0.05f, .typical_p = 0.9f}},
      {{.temperature = 0.7f, .top_k = 40, .top_p = 0.95f}},
  };
}

}  // namespace ovq::model::test
