#include "kernels/mixers/recurrent/short_conv.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "tests/kernels/mixers/recurrent_util.h"

namespace ovq::kernels::test {
namespace {

class ShortConvTargets : public TargetTest {};
INSTANTIATE_TEST_SUITE_P(, ShortConvTargets, testing::ValuesIn(Targets()), TargetName);

struct ConvCase {
  int64_t width;
  int conv_size;
  int64_t filters_per_channel;
  bool has_bias;
  int64_t stride() const { return width + 3; }
  size_t kept() const { return static_cast<size_t>((conv_size - 1) * width); }
  int64_t n_filters() const { return filters_per_channel * width; }
};

Result RunConv(DeviceContext& context, const ConvCase& c, const Sequences& sequences,
               const std::vector<float>& u, const std::vector<float>& weight,
               const std::vector<float>& bias) {
  const DeviceArray<float> in(context, u), w(context, weight), b(context, bias);
  return RunBatch(context, sequences, [&](const BatchSequences& seqs) {
    const DeviceArray<float> y(context, static_cast<size_t>(seqs.n_tokens() * c.n_filters()));
    Convolve(context, seqs,
             {.u = in.data(),
              .u_stride = c.stride(),
              .width = c.width,
              .conv_size = c.conv_size,
              .n_filters = c.n_filters(),
              .weight = weight.empty() ? nullptr : w.data(),
              .bias = c.has_bias ? b.data() : nullptr,
              .newest = 0,
              .y = y.data()});
    return y.Read();
  });
}

// State of a session of that length: token s at s mod (conv_size - 1), zeros before token 0.
std::vector<float> NewestInputs(const ConvCase& c, int64_t length, uint64_t seed) {
  std::vector<float> kept = RandomNormal(c.kept(), seed);
  for (int64_t s = length; s < c.conv_size - 1; ++s) {
    std::fill_n(kept.begin() + s * c.width, c.width, 0.0f);
  }
  return kept;
}

TEST(ShortConvTargetsReference, ConvolvesByHand) {
  auto context = MakeContext(Device::kReference);
  const ConvCase c = {.width = 1, .conv_size = 3, .filters_per_channel = 1, .has_bias = true};
  // Weights 1, 10, 100 from the oldest input to the newest; tokens 2 and 3 come after inputs 5
  // (token 0) and 6 (token 1): 0.5 + 5 + 60 + 700 and 0.5 + 6 + 70 + 800, which silu leaves
  // unchanged.
  const std::vector<float> u = {7, 0, 0, 0, 8, 0, 0, 0};
  const Result result = RunConv(*context, c, {{2}, {2}, {{5, 6}}}, u, {1, 10, 100}, {0.5f});
  EXPECT_EQ(result.y, (std::vector<float>{765.5f, 876.5f}));
  EXPECT_EQ(result.states[0], (std::vector<float>{7, 8}));
  // Inputs before token 0 are zero; silu(-0.5) = -0.5 / (1 + e^0.5).
  const Result first =
      RunConv(*context, c, {{1}, {0}, {{0, 0}}}, {-0.01f, 0, 0, 0}, {1, 10, 100}, {0.5f});
  EXPECT_NEAR(first.y[0], -0.5 / (1 + std::exp(0.5)), 1e-6);
}

// A sum of conv_size rounded products errs by (conv_size + 1) roundings of the sum of magnitudes,
// which is at most twice silu of it; silu's slope is at most 1.1, and silu itself rounds a few
// times.
TEST_P(ShortConvTargets, ConvolvesAsTheReference) {
  const ConvCase cases[] = {{1, 2, 1, false}, {5, 4, 1, true},   {16, 4, 2, false},
                            {70, 7, 1, true}, {300, 4, 2, true}, {33, 1, 1, true}};
  for (const ConvCase& c : cases) {
    const std::vector<float> u = RandomNormal(static_cast<size_t>(49 * c.stride()), 1);
    const std::vector<float> w = RandomNormal(static_cast<size_t>(c.conv_size * c.n_filters()), 2);
    const std::vector<float> b = RandomNormal(static_cast<size_t>(c.n_filters()), 3);
    Sequences sequences = {{1, 5, 40, 3}, {0, 17, 2, 0}, {}};
    for (int64_t start : sequences.starts) {
      sequences.states.push_back(NewestInputs(c, start, 4 + static_cast<uint64_t>(start)));
    }
    const Result expected = RunConv(*ref_, c, sequences, u, w, b);
    const Result actual = RunConv(*context_, c, sequences, u, w, b);
    for (auto& state : sequences.states) state = Magnitudes(state);
    const std::vector<float> sums =
        RunConv(*ref_, c, sequences, Magnitudes(u), Magnitudes(w), Magnitudes(b)).y;
    const std::string what = absl::StrCat(c.width, " channels, taps ", c.conv_size);
    AssertClose(
        actual.y, expected.y,
        [&](size_t i) { return (2.2 * (c.conv_size + 1) + 10) * kRoundF32 * sums[i]; }, what);
    EXPECT_EQ(actual.states, expected.states) << what;
  }
}

TEST_P(ShortConvTargets, WithoutWeightsAConvolutionIsSilu) {
  const ConvCase c = {.width = 7, .conv_size = 1, .filters_per_channel = 1, .has_bias = false};
  std::vector<float> u = RandomNormal(static_cast<size_t>(2 * c.stride()), 1);
  u[0] = -200, u[1] = 200, u[2] = 0;
  const std::vector<float> y = RunConv(*context_, c, {{2}, {5}, {{}}}, u, {}, {}).y;
  for (int i = 0; i < 14; ++i) {
    const double x = u[i / 7 * c.stride() + i % 7];
    EXPECT_NEAR(y[i], x / (1 + std::exp(-x)), std::abs(x) * 8 * kRoundF32) << x;
  }
}

// The bits do not depend on how a sequence is split, nor on the other sequences of a batch.
TEST_P(ShortConvTargets, SplitsOfAConvolutionGiveTheSameBits) {
  const ConvCase c = {.width = 21, .conv_size = 4, .filters_per_channel = 2, .has_bias = true};
  const std::vector<float> u = RandomNormal(static_cast<size_t>(20 * c.stride()), 1);
  const std::vector<float> w = RandomNormal(static_cast<size_t>(4 * c.n_filters()), 2);
  const std::vector<float> b = RandomNormal(static_cast<size_t>(c.n_filters()), 3);
  const std::vector<float> none(c.kept());
  const Result whole = RunConv(*context_, c, {{20}, {0}, {none}}, u, w, b);
  for (int32_t split = 1; split < 20; ++split) {
    const Result head = RunConv(*context_, c, {{split}, {0}, {none}}, u, w, b);
    std::vector<float> tokens = TokenRows(u, 0, 2, c.stride());
    const std::vector<float> rest = TokenRows(u, split, 20, c.stride());
    tokens.insert(tokens.end(), rest.begin(), rest.end());
    const Result tail =
        RunConv(*context_, c, {{2, 20 - split}, {0, split}, {none, head.states[0]}}, tokens, w, b);
    std::vector<float> joined = head.y;
    joined.insert(joined.end(), tail.y.begin() + 2 * c.n_filters(), tail.y.end());
    AssertSameBits(joined, whole.y, absl::StrCat("split at ", split));
    EXPECT_EQ(tail.states[1], whole.states[0]) << split;
  }
}

}  // namespace
}  // namespace ovq::kernels::test
