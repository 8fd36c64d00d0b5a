#include "kernels/mixers/recurrent/gates.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "absl/strings/str_cat.h"
#include "tests/kernels/mixers/recurrent_util.h"

namespace ovq::kernels::test {
namespace {

class GatesTargets : public TargetTest {};
INSTANTIATE_TEST_SUITE_P(, GatesTargets, testing::ValuesIn(Targets()), TargetName);

constexpr float kInfinity = std::numeric_limits<float>::infinity();

struct Decays {
  std::vector<float> decay, dt;
};
// x [n_tokens, n + 2], of which the first n numbers of a token are used.
Decays RunDecay(DeviceContext& context, const std::vector<float>& x, const std::vector<float>& bias,
                const std::vector<float>& rate, float least = 0, float most = kInfinity,
                float lower_bound = 0) {
  const size_t n = bias.size(), n_tokens = x.size() / (n + 2);
  const DeviceArray<float> in(context, x), b(context, bias), r(context, rate);
  const DeviceArray<float> decay(context, n * n_tokens), dt(context, n * n_tokens);
  Decay(context, {.x = in.data(),
                  .x_stride = static_cast<int64_t>(n + 2),
                  .n_tokens = static_cast<int64_t>(n_tokens),
                  .n_heads = static_cast<int>(n),
                  .bias = b.data(),
                  .rate = r.data(),
                  .decay = decay.data(),
                  .dt = dt.data(),
                  .min_dt = least,
                  .max_dt = most,
                  .lower_bound = lower_bound});
  return {decay.Read(), dt.Read()};
}

TEST(GatesTargetsReference, DecaysByHand) {
  auto context = MakeContext(Device::kReference);
  const Decays one = RunDecay(*context, {1, 0, 0}, {-1}, {-2});
  EXPECT_FLOAT_EQ(one.dt[0], std::log(2.0f));
  EXPECT_FLOAT_EQ(one.decay[0], 0.25f);
  EXPECT_EQ(RunDecay(*context, {9, 0, 0}, {0}, {-1}, 0.02f, 0.3f).dt[0], 0.3f);
  EXPECT_EQ(RunDecay(*context, {-9, 0, 0}, {0}, {-1}, 0.02f, 0.3f).dt[0], 0.02f);
}

// Input plus bias is rounded once, which changes softplus by at most the sum's error; a few more
// roundings follow. A decay's exponent has the same relative error. Underflow may give zero.
TEST_P(GatesTargets, DecaysAsTheReference) {
  std::vector<float> x = RandomNormal(6 * 13, 1);
  const std::vector<float> extremes = {-3e38f, -120, -80, -20, -1e-3f, 0,
                                       1e-3f,  20,   80,  120, 3e38f};
  std::copy(extremes.begin(), extremes.end(), x.begin());
  const std::vector<float> bias = {0, 0, 0, 0, 0.125f, -2, 3, 0, 1, 0, 0};
  const std::vector<float> rate = {-1,    -1e-6f, -16, -3e38f, -0.5f, 0,
                                   -1e4f, -1,     -1,  -1e-2f, -3e38f};
  for (float most : {kInfinity, 0.25f}) {
    const Decays expected = RunDecay(*ref_, x, bias, rate, 0, most);
    const Decays actual = RunDecay(*context_, x, bias, rate, 0, most);
    const auto dt_error = [&](size_t i) {
      const double z = std::abs(x[i / 11 * 13 + i % 11] + bias[i % 11]);
      return (std::min(z, 120.0) + 12) * kRoundF32;
    };
    AssertClose(
        actual.dt, expected.dt, [&](size_t i) { return dt_error(i) * expected.dt[i] + 1e-37; },
        "steps");
    AssertClose(
        actual.decay, expected.decay,
        [&](size_t i) {
          const double exponent = std::min(-double{rate[i % 11]} * expected.dt[i], 110.0);
          return ((dt_error(i) + kRoundF32) * exponent + 4 * kRoundF32) * expected.decay[i] + 1e-37;
        },
        "decays");
  }
}

// ln decay = lower_bound s with a sigmoid s of exponent u = rate (x + bias), which is rounded
// twice: s (1 - s) |u| <= 0.28 bounds what that changes, and a few more roundings follow.
TEST_P(GatesTargets, DecaysWithALowerBoundAsTheReference) {
  const std::vector<float> bias = {0, 0.5f, -1}, rate = {-1, -0.25f, -3e38f};
  std::vector<float> x = RandomNormal(5 * 40, 1);
  const std::vector<float> extremes = {-3e38f, -120, 0, 0, 0, 120, 3e38f, 1};
  std::copy(extremes.begin(), extremes.end(), x.begin());
  const Decays expected = RunDecay(*ref_, x, bias, rate, 0, kInfinity, -5);
  AssertClose(
      RunDecay(*context_, x, bias, rate, 0, kInfinity, -5).decay, expected.decay,
      [](size_t) { return 5 * (0.28 * 3 + 4) * kRoundF32; }, "decays");
  const auto one = [&](float input, float log_rate) {
    return RunDecay(*context_, {input, 0, 0}, {1}, {log_rate}, 0, kInfinity, -4).decay[0];
  };
  EXPECT_FLOAT_EQ(one(-1, -2), std::exp(-2.0f));  // sigmoid(0) = 1/2
  EXPECT_FLOAT_EQ(one(300, -2), std::exp(-4.0f));
  EXPECT_FLOAT_EQ(one(-300, -2), 1);
}

TEST_P(GatesTargets, SigmoidAsTheReference) {
  const auto run = [](DeviceContext& context, const std::vector<float>& x, bool has_bias) {
    const std::vector<float> bias = {0.5f, -0.25f, 0};
    const DeviceArray<float> in(context, x), b(context, bias), y(context, x.size() / 4 * 3);
    Sigmoid(context, {.x = in.data(),
                      .x_stride = 4,
                      .n_tokens = static_cast<int64_t>(x.size()) / 4,
                      .n_heads = 3,
                      .y = y.data(),
                      .bias = has_bias ? b.data() : nullptr,
                      .scale = has_bias ? 2.0f : 1.0f});
    return y.Read();
  };
  std::vector<float> x = RandomNormal(4 * 50, 1);
  const std::vector<float> extremes = {-3e38f, -100, -80, 0, 0, 80, 100, 0, 3e38f};
  std::copy(extremes.begin(), extremes.end(), x.begin());
  for (bool has_bias : {false, true}) {
    // The exponent is rounded once, and is at most 80 where the result is not close to 0 or 1.
    AssertClose(
        run(*context_, x, has_bias), run(*ref_, x, has_bias),
        [](size_t) { return 2 * 4 * kRoundF32; }, "sigmoid");
  }
  EXPECT_EQ(run(*ref_, {0, 200, -200, 0}, false), (std::vector<float>{0.5f, 1, 0}));
}

struct NormCase {
  int64_t width;
  GateKind gate;
  bool shares_weight, gates_input, has_weight;
};

template <class T = float>
std::vector<T> RunNorm(DeviceContext& context, const NormCase& c, const std::vector<float>& x,
                       const std::vector<float>& z, const std::vector<float>& weight) {
  constexpr int kGroups = 3;
  const DeviceArray<float> in(context, x), gates(context, z), w(context, weight);
  const DeviceArray<T> y(context, x.size());
  const auto n_tokens = static_cast<int64_t>(x.size()) / (kGroups * c.width);
  NormAndGate(context, {.x = in.data(),
                        .n_tokens = n_tokens,
                        .n_groups = kGroups,
                        .width = c.width,
                        .weight = c.has_weight ? w.data() : nullptr,
                        .shares_weight = c.shares_weight,
                        .eps = 1e-5f,
                        .gate = c.gate,
                        .z = c.gate == GateKind::kNone ? nullptr : gates.data(),
                        .z_stride = static_cast<int64_t>(z.size()) / n_tokens,
                        .gates_input = c.gates_input,
                        .y = y.data(),
                        .y_dtype = kDTypeFor<T>});
  return y.Read();
}

TEST(GatesTargetsReference, NormsAndGatesByHand) {
  auto context = MakeContext(Device::kReference);
  // Groups (3, 4), (6, 8) and (0, 5): mean squares 12.5, 50 and 12.5.
  const std::vector<float> x = {3, 4, 6, 8, 0, 5}, z = {0, 1, 1, 0, 2, 2};
  const auto silu = [](double v) { return v / (1 + std::exp(-v)); };
  const std::vector<float> weight = {1, 10, 2, 20, 3, 30};
  const std::vector<float> after =
      RunNorm(*context, {2, GateKind::kSilu, false, false, true}, x, z, weight);
  EXPECT_NEAR(after[1], 10 * 4 / std::sqrt(12.5) * silu(1), 1e-4);
  EXPECT_NEAR(after[2], 2 * 6 / std::sqrt(50.0) * silu(1), 1e-4);
  EXPECT_NEAR(after[5], 30 * 5 / std::sqrt(12.5) * silu(2), 1e-4);
  // With the gate first, the first group is (0, 4 silu(1)).
  const std::vector<float> before =
      RunNorm(*context, {2, GateKind::kSilu, true, true, true}, x, z, weight);
  EXPECT_NEAR(before[1], 10 * std::sqrt(2.0), 1e-4);
  EXPECT_EQ(before[0], 0);
  EXPECT_NEAR(RunNorm(*context, {2, GateKind::kGeluTanh, true, false, false}, x, z, weight)[1],
              4 * 0.841192, 1e-5);
}

// A sum of n squares in parallel chains errs by at most (n / 4 + 6) roundings of itself, its root
// by half of that. A gate's exponent, at most 20 here, is rounded three times, the rest a few
// times.
TEST_P(GatesTargets, NormsAndGatesAsTheReference) {
  for (int64_t width : {1, 5, 16, 64, 300}) {
    const auto n = static_cast<size_t>(4 * 3 * width);
    const std::vector<float> x = RandomNormal(n, 1), weight = RandomNormal(n / 4, 3);
    std::vector<float> z = RandomNormal(n + 4 * 5, 2);
    z[0] = -200;  // e^200 overflows float
    for (int i = 0; i < 32; ++i) {
      const NormCase c = {width, static_cast<GateKind>(i % 4), i / 4 % 2 == 0, i / 8 % 2 == 0,
                          i / 16 == 0};
      const std::vector<float> expected = RunNorm(*ref_, c, x, z, weight);
      const std::vector<float> actual = RunNorm(*context_, c, x, z, weight);
      const double tolerance = (static_cast<double>(width) / 8 + 3 + 60 + 12) * kRoundF32;
      const std::string what = absl::StrCat("width ", width, " case ", i);
      AssertClose(
          actual, expected, [&](size_t j) { return tolerance * std::abs(expected[j]); }, what);
      AssertSameBits(Widened(RunNorm<BF16>(*context_, c, x, z, weight)), Widened(Rounded(actual)),
                     what);
    }
  }
}

}  // namespace
}  // namespace ovq::kernels::test
