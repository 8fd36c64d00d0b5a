#include "kernels/mixers/mesa_net/mesa_net.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "absl/strings/str_cat.h"
#include "kernels/common/dispatch.h"
#include "tests/kernels/mixers/mixer_test_util.h"
#include "tests/kernels/mixers/recurrent_util.h"

namespace ovq::kernels::test {
namespace {

using ::testing::HasSubstr;
using Vector = std::vector<double>;

// Runs n_tokens of random unit keys and queries in a new session.
class MesaTokens {
 public:
  MesaTokens(const MesaConfig& config, int32_t n_tokens, uint64_t seed)
      : config_(config), n_tokens_(n_tokens) {
    const auto tokens = static_cast<size_t>(n_tokens), width = static_cast<size_t>(config.width());
    qk = UnitVectors(RandomNormal(tokens * 2 * width, seed), static_cast<size_t>(config.head_dim));
    v = RandomNormal(tokens * width, seed + 1);
    beta = Gates(tokens * static_cast<size_t>(config.n_heads), seed + 2);
    gamma = Gates(beta.size(), seed + 3);
    lambda.assign(static_cast<size_t>(config.n_heads * config.stride()), 0.0f);
    for (int64_t i = 0; i < config.width(); ++i) {
      lambda[static_cast<size_t>(i / config.head_dim * config.stride() + i % config.head_dim)] =
          0.25f + 0.1f * static_cast<float>(i % 7);
    }
  }

  // y [n_tokens, n_heads, head_dim]; state: h_kk and h_kv of every head.
  Result Run(DeviceContext& context) const {
    const int64_t matrix = config_.head_dim * config_.stride();
    const std::vector<float> zeros(static_cast<size_t>(2 * config_.n_heads * matrix), 0.0f);
    const DeviceArray<float> keys(context, qk), values(context, v), betas(context, beta),
        gammas(context, gamma), lambdas(context, lambda), y(context, v.size());
    const size_t head = static_cast<size_t>(matrix) * sizeof(float);
    return RunBatch(context, {{n_tokens_}, {0}, {zeros}}, [&](const BatchSequences& seqs) {
      Dispatch<MesaNetCpu, MesaNetCuda>(
          context, seqs,
          MesaArgs{.config = config_,
                   .h_kk = {0, head, 0},
                   .h_kv = {static_cast<size_t>(config_.n_heads) * head, head, 0},
                   .q = keys.data(),
                   .k = keys.data() + config_.width(),
                   .v = values.data(),
                   .qk_stride = 2 * config_.width(),
                   .v_stride = config_.width(),
                   .beta = betas.data(),
                   .gamma = gammas.data(),
                   .lambda = lambdas.data(),
                   .y = y.data()});
      return y.Read();
    });
  }

  std::vector<float> qk, v, beta, gamma, lambda;

 private:
  MesaConfig config_;
  int32_t n_tokens_;
};

// Solves m x = y by Gauss-Jordan elimination; m is symmetric positive definite.
Vector SolveExactly(std::vector<Vector> m, Vector y) {
  for (size_t i = 0; i < y.size(); ++i) {
    for (size_t j = 0; j < y.size(); ++j) {
      if (j == i) continue;
      const double factor = m[j][i] / m[i][i];
      for (size_t c = 0; c < y.size(); ++c) m[j][c] -= factor * m[i][c];
      y[j] -= factor * y[i];
    }
  }
  for (size_t i = 0; i < y.size(); ++i) y[i] /= m[i][i];
  return y;
}

using MesaNetDevices = DeviceTest;
INSTANTIATE_TEST_SUITE_P(, MesaNetDevices, testing::ValuesIn(TestDevices()), NameOfDevice);

// The iteration approximates y = B^T (A + diag(lambda))^-1 q. It stalls when r.r nears the 1e-5
// that damp its steps: |r| is about 3e-3, which (A + diag(lambda))^-1 and B, of size 1 to 4 here,
// turn into an error of up to 0.02.
TEST_P(MesaNetDevices, ComesCloseToTheExactSolution) {
  const MesaConfig config = {.n_heads = 1, .head_dim = 12, .conv_size = 4, .cg_steps = 30};
  constexpr int32_t kTokens = 20;
  MesaTokens tokens(config, kTokens, 5);
  const Result result = tokens.Run(*context_);
  const size_t n = 12, stride = static_cast<size_t>(config.stride());
  const float *a = result.states[0].data(), *b = a + n * stride;
  std::vector<Vector> m(n, Vector(n));
  for (size_t i = 0; i < n; ++i) {
    for (size_t j = 0; j < n; ++j) m[i][j] = a[i * stride + j] + (i == j ? tokens.lambda[i] : 0);
  }
  const float* q = tokens.qk.data() + (kTokens - 1) * 2 * n;
  const Vector u = SolveExactly(m, Vector(q, q + n));
  std::vector<float> expected(n);
  for (size_t j = 0; j < n; ++j) {
    double y = 0;
    for (size_t i = 0; i < n; ++i) y += b[i * stride + j] * u[i];
    expected[j] = static_cast<float>(y);
  }
  AssertClose(std::span(result.y).last(n), expected, 0.02, "y");
  MesaConfig short_of_it = config;
  short_of_it.cg_steps = 2;
  const Result early = MesaTokens(short_of_it, kTokens, 5).Run(*context_);
  float farthest = 0;
  for (size_t i = 0; i < n; ++i) {
    farthest = std::max(farthest, std::abs(early.y[early.y.size() - n + i] - expected[i]));
  }
  EXPECT_GT(farthest, 0.02);
}

TEST(MesaNet, EveryWidthOfVectorsGivesTheSameBits) {
  const auto context = MakeContext(Device::kCpu);
  for (int head_dim : {16, 37, 128}) {
    const MesaConfig config = {.n_heads = 2, .head_dim = head_dim, .conv_size = 4, .cg_steps = 30};
    const MesaTokens tokens(config, 9, 11);
    std::vector<Result> results;
    for (int64_t target : FusedHighwayTargets()) {
      const ScopedHighwayTarget scoped(target);
      results.push_back(tokens.Run(*context));
      const std::string what = absl::StrCat(HighwayTargetName(target), ", head_dim ", head_dim);
      AssertSameBits(results.back().y, results[0].y, what);
      AssertSameBits(results.back().states[0], results[0].states[0], what);
    }
  }
}

absl::Status MesaStatus(Fields fields) {
  fields.insert({{"num_heads", 2}, {"head_dim", 16}});
  const Attrs section = MakeFields(fields, "mesa_net.");
  absl::Status status = ReadFields("mesa_net", Attrs(), section)->problems;
  status.Update(section.CheckAllRead());
  return status;
}

TEST(MesaNet, NamesTheFieldThatIsWrong) {
  EXPECT_TRUE(MesaStatus({}).ok()) << MesaStatus({});
  EXPECT_TRUE(MesaStatus({{"max_cg_step_decoding", 3}, {"use_short_conv", false}}).ok());
  const auto expect = [](const std::string& field, const Attrs::Value& value,
                         const std::string& text) {
    EXPECT_THAT(std::string(MesaStatus({{field, value}}).message()),
                HasSubstr("mesa_net." + field + ": " + text));
  };
  expect("num_heads", 0, "expected an integer in [1, 4096], got 0");
  expect("head_dim", 129, "expected an integer in [1, 128], got 129");
  expect("conv_size", 1, "expected an integer in [2, 64], got 1");
  expect("conv_bias", 1, "expected true or false");
  expect("lambda_lower_bound", -0.5, "expected a number");
  expect("max_cg_step_training", 0, "expected an integer in [1, 1024], got 0");
  expect("chunk_size", 64, "unknown field");
}

}  // namespace
}  // namespace ovq::kernels::test
