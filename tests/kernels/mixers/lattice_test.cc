#include "kernels/mixers/lattice/lattice.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <map>

#include "absl/strings/str_cat.h"
#include "kernels/common/dispatch.h"
#include "tests/kernels/mixers/mixer_test_util.h"
#include "tests/kernels/mixers/recurrent_util.h"

namespace ovq::kernels::test {
namespace {

using ::testing::HasSubstr;
using Vector = std::vector<double>;

// Tokens of one head, run on given slots.
struct LatticeTokens {
  LatticeTokens(const LatticeConfig& of, int32_t tokens, uint64_t seed)
      : config(of), n_tokens(tokens) {
    const auto n = static_cast<size_t>(n_tokens), m = static_cast<size_t>(config.n_slots);
    qk = UnitVectors(RandomNormal(n * 2 * m, seed), m);
    v = RandomNormal(n * static_cast<size_t>(config.value_head_dim), seed + 1);
    gamma = Gates(n, seed + 2);
    mu = Gates(n, seed + 3);
    dt = Gates(n, seed + 4);
    const std::vector<float> unit_vectors =
        UnitVectors(RandomNormal(m * static_cast<size_t>(config.value_head_dim), seed + 5),
                    static_cast<size_t>(config.value_head_dim));
    slots.assign(m * static_cast<size_t>(config.stride()), 0.0f);
    for (int64_t i = 0; i < config.n_slots; ++i) {
      // Slots that keep their length start with different lengths.
      const float length =
          config.normalized_projection ? 1.0f : 0.5f + 0.3f * static_cast<float>(i);
      for (int64_t c = 0; c < config.value_head_dim; ++c) {
        slots[static_cast<size_t>(i * config.stride() + c)] =
            length * unit_vectors[static_cast<size_t>(i * config.value_head_dim + c)];
      }
    }
  }

  // Advances `slots`; returns y.
  std::vector<float> Run(DeviceContext& context) {
    const DeviceArray<float> keys(context, qk), values(context, v), gammas(context, gamma),
        mus(context, mu), dts(context, dt), rates(context, std::vector<float>{rate}),
        y(context, v.size());
    LatticeGates gates = {.gamma = gammas.data(), .mu = nullptr, .dt = nullptr, .rate = nullptr};
    if (config.decays()) gates.mu = mus.data();
    if (config.thresholds) gates.dt = dts.data(), gates.rate = rates.data();
    Result result = RunBatch(context, {{n_tokens}, {0}, {slots}}, [&](const BatchSequences& seqs) {
      Dispatch<LatticeCpu, LatticeCuda>(context, seqs,
                                        LatticeArgs{.config = config,
                                                    .slots = {0, slots.size() * sizeof(float), 0},
                                                    .q = keys.data(),
                                                    .k = keys.data() + config.n_slots,
                                                    .v = values.data(),
                                                    .qk_stride = 2 * config.key_width(),
                                                    .v_stride = config.value_head_dim,
                                                    .gates = gates,
                                                    .y = y.data()});
      return y.Read();
    });
    slots = std::move(result.states[0]);
    return std::move(result.y);
  }

  LatticeConfig config;
  int32_t n_tokens;
  std::vector<float> qk, v, gamma, mu, dt, slots;
  float rate = -0.05f;
};

// Losses of eq. 6 and 9, halved because the paper drops the factor 2 of their gradients, and of
// eq. 11. s [n_slots][stride].
double Loss(const LatticeTokens& tokens, const Vector& s) {
  const auto n_slots = static_cast<size_t>(tokens.config.n_slots),
             dv = static_cast<size_t>(tokens.config.value_head_dim),
             stride = static_cast<size_t>(tokens.config.stride());
  const float* k = tokens.qk.data() + n_slots;
  Vector decoded(dv, 0.0), encoded(n_slots, 0.0);
  for (size_t i = 0; i < n_slots; ++i) {
    double squares = 0;
    for (size_t c = 0; c < dv; ++c) squares += s[i * stride + c] * s[i * stride + c];
    for (size_t c = 0; c < dv; ++c) {
      const double phi = s[i * stride + c] / std::sqrt(squares);
      decoded[c] += phi * k[i];
      encoded[i] += phi * tokens.v[c];
    }
  }
  double loss = 0;
  switch (tokens.config.objective) {
    case LatticeObjective::kDecoding:
      for (size_t c = 0; c < dv; ++c) loss += std::pow(decoded[c] - tokens.v[c], 2) / 2;
      break;
    case LatticeObjective::kEncoding:
      for (size_t i = 0; i < n_slots; ++i) loss += std::pow(encoded[i] - k[i], 2) / 2;
      break;
    case LatticeObjective::kSimilarity:
      for (size_t i = 0; i < n_slots; ++i) loss -= encoded[i] * k[i];
      break;
  }
  return loss;
}

// Slots after one token: a step down the loss's gradient by central differences, whose error is
// 1e-10 in double, then the regularization and the projection.
Vector Descended(const LatticeTokens& tokens) {
  constexpr double kStep = 1e-5;
  const auto n_slots = static_cast<size_t>(tokens.config.n_slots),
             dv = static_cast<size_t>(tokens.config.value_head_dim),
             stride = static_cast<size_t>(tokens.config.stride());
  const Vector before(tokens.slots.begin(), tokens.slots.end());
  Vector after = before;
  const double tau = tokens.config.thresholds ? tokens.gamma[0] * -tokens.rate * tokens.dt[0] : 0;
  for (size_t i = 0; i < n_slots; ++i) {
    double squares = 0;
    for (size_t at = i * stride; at < i * stride + dv; ++at) {
      Vector up = before, down = before;
      up[at] += kStep;
      down[at] -= kStep;
      const double gradient = (Loss(tokens, up) - Loss(tokens, down)) / (2 * kStep);
      const double moved =
          (tokens.config.decays() ? tokens.mu[0] : 1) * before[at] - tokens.gamma[0] * gradient;
      after[at] = std::copysign(std::max(std::abs(moved) - tau, 0.0), moved);
      squares += after[at] * after[at];
    }
    if (!tokens.config.normalized_projection) continue;
    for (size_t at = i * stride; at < i * stride + dv; ++at) after[at] /= std::sqrt(squares);
  }
  return after;
}

using LatticeDevices = DeviceTest;
INSTANTIATE_TEST_SUITE_P(, LatticeDevices, testing::ValuesIn(TestDevices()), NameOfDevice);

// Checks every variant of the paper against its loss alone. Elements are of size 1 and result from
// about ten operations in float32.
TEST_P(LatticeDevices, ARowDescendsItsLoss) {
  for (int variant = 0; variant < 3 * 2 * 3; ++variant) {
    const LatticeConfig config = {.n_heads = 1,
                                  .n_slots = 7,
                                  .value_head_dim = 10,
                                  .conv_size = 4,
                                  .objective = static_cast<LatticeObjective>(variant % 3),
                                  .normalized_projection = variant / 3 % 2 == 0,
                                  .use_forget_gate = variant / 6 > 0,
                                  .thresholds = variant / 6 == 2};
    LatticeTokens tokens(config, 1, 20 + static_cast<uint64_t>(variant));
    const Vector expected = Descended(tokens);
    const std::vector<float> y = tokens.Run(*context_);
    const std::string what = absl::StrCat("variant ", variant);
    AssertClose(tokens.slots, std::vector<float>(expected.begin(), expected.end()), 32 * kRoundF32,
                what);
    std::vector<float> read(y.size(), 0.0f);
    for (size_t i = 0; i < 7; ++i) {
      for (size_t c = 0; c < read.size(); ++c) {
        read[c] += tokens.qk[i] * tokens.slots[i * static_cast<size_t>(config.stride()) + c];
      }
    }
    AssertClose(y, read, 32 * kRoundF32, what + ", y");
  }
}

TEST_P(LatticeDevices, SlotsKeepTheirUnitLength) {
  const LatticeConfig config = {.n_heads = 1, .n_slots = 5, .value_head_dim = 20, .conv_size = 4};
  LatticeTokens tokens(config, GetParam() == Device::kCuda ? 300 : 20000, 3);
  tokens.Run(*context_);
  for (size_t i = 0; i < 5; ++i) {
    double squares = 0;
    for (size_t c = 0; c < 20; ++c) {
      squares += std::pow(tokens.slots[i * static_cast<size_t>(config.stride()) + c], 2);
    }
    // Only the last division and root err: errors of earlier tokens are divided away.
    EXPECT_NEAR(std::sqrt(squares), 1, 8 * kRoundF32);
  }
}

// A slot of length 0 would have no direction.
TEST_P(LatticeDevices, AThresholdAboveEveryElementLeavesSlotsAsTheyWere) {
  for (bool normalized : {false, true}) {
    const LatticeConfig config = {.n_heads = 1,
                                  .n_slots = 9,
                                  .value_head_dim = 12,
                                  .conv_size = 4,
                                  .normalized_projection = normalized,
                                  .thresholds = true};
    LatticeTokens tokens(config, 3, 8);
    tokens.rate = -1e6f;
    const std::vector<float> before = tokens.slots;
    const std::vector<float> y = tokens.Run(*context_);
    AssertSameBits(tokens.slots, before, "slots");
    for (float element : y) EXPECT_TRUE(std::isfinite(element));
  }
}

TEST(Lattice, EveryWidthOfVectorsGivesTheSameBits) {
  const auto context = MakeContext(Device::kCpu);
  for (bool normalized : {false, true}) {
    const LatticeConfig config = {.n_heads = 1,
                                  .n_slots = 19,
                                  .value_head_dim = 77,
                                  .conv_size = 4,
                                  .normalized_projection = normalized};
    std::vector<float> first_y, first_slots;
    for (int64_t target : FusedHighwayTargets()) {
      const ScopedHighwayTarget scoped(target);
      LatticeTokens tokens(config, 9, 4);
      const std::vector<float> y = tokens.Run(*context);
      if (first_y.empty()) first_y = y, first_slots = tokens.slots;
      AssertSameBits(y, first_y, HighwayTargetName(target));
      AssertSameBits(tokens.slots, first_slots, HighwayTargetName(target));
    }
  }
}

absl::Status LatticeStatus(Fields fields, Device device = Device::kCpu) {
  fields.insert({{"num_heads", 2}, {"num_slots", 16}, {"value_head_dim", 20}});
  const Attrs section = MakeFields(fields, "lattice.");
  const auto config = ReadFields("lattice", Attrs(), section);
  const auto state = FindMixer("lattice")->state(
      {.config = *config, .d_model = 48, .kv_dtype = DType::kF32, .device = device});
  absl::Status status = state.status();
  status.Update(section.CheckAllRead());
  return status;
}

TEST(Lattice, NamesTheFieldThatIsWrong) {
  EXPECT_TRUE(LatticeStatus({}).ok()) << LatticeStatus({});
  EXPECT_TRUE(LatticeStatus({{"num_slots", 1024}, {"value_head_dim", 128}}).ok());
  const auto expect = [](const Fields& fields, const std::string& text,
                         Device device = Device::kCpu) {
    EXPECT_THAT(std::string(LatticeStatus(fields, device).message()), HasSubstr("lattice." + text));
  };
  expect({{"num_heads", 0}}, "num_heads: expected an integer in [1, 4096], got 0");
  expect({{"num_slots", 5000}}, "num_slots: expected an integer in [1, 4096], got 5000");
  expect({{"value_head_dim", 257}}, "value_head_dim: expected an integer in [1, 256], got 257");
  expect({{"conv_size", 1}}, "conv_size: expected an integer in [2, 64], got 1");
  expect({{"objective", "pca"}}, "objective: unknown value 'pca'; known: dec, enc, sim");
  expect({{"normalized_projection", 1}}, "normalized_projection: expected true or false");
  expect({{"regularization", "l3"}}, "regularization: unknown value 'l3'; known: l2, l1");
  expect({{"regularization", "l1"}, {"use_forget_gate", false}},
         "regularization: expected l2 with use_forget_gate false");
  expect({{"num_slots", 1024}, {"value_head_dim", 128}},
         "num_slots: expected at most 384 on cuda with value_head_dim 128, got 1024",
         Device::kCuda);
  expect({{"num_kv_heads", 2}}, "num_kv_heads: unknown field");
}

}  // namespace
}  // namespace ovq::kernels::test
