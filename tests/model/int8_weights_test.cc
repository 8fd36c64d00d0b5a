// Models with ModelOptions::weights = kInt8.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "model/load_config.h"
#include "tests/model/edited_model.h"
#include "tests/model/golden_util.h"
#include "tests/test_util.h"

namespace ovq::model::test {
namespace {

std::unique_ptr<LanguageModel> LoadInt8(const std::string& folder, kernels::DeviceContext& context,
                                        kernels::DType compute) {
  ModelOptions options = kSmallSessions;
  options.compute_dtype = compute;
  options.weights = kernels::WeightType::kInt8;
  auto model = LanguageModel::Load(folder, options, context);
  Check(model.ok(), Message(model.status()).c_str());
  return *std::move(model);
}

// Compares a session alone and whole with the same session in pieces beside another, on two
// threads.
TEST(Int8Weights, AnswersDoNotDependOnTheirCompany) {
  for (const char* name : {"sw-ovq", "sw-gdn", "sw-full", "published/granitemoehybrid-moe"}) {
    const Golden golden = LoadGolden(name);
    const auto one = BoundContext(kernels::Device::kCpu),
               two = BoundContext(kernels::Device::kCpu, 2);
    const auto model = LoadInt8(golden.folder, *one, kernels::DType::kBF16);
    const auto again = LoadInt8(golden.folder, *two, kernels::DType::kBF16);
    Session whole(*model, *one, golden.sequences[0], 24);
    whole.Feed(whole.remaining());
    Session pieces(*again, *two, golden.sequences[0], 24);
    Session other(*again, *two, golden.sequences.back(), 24);
    FeedTogether(*again, *two, {&other, &pieces}, {5, 1});
    kernels::test::AssertSameBits(pieces.logits(), whole.logits(), name);
    EXPECT_EQ(pieces.StateBytes(), whole.StateBytes()) << name;
  }
}

// Products are equal to the bit on both devices, so only the sums of norms and attention differ. A
// value that falls on the other side of a half moves by one unit of its row, 1/127 of the largest;
// so logits agree far more closely with the reference's than with those of the unquantized weights.
TEST(Int8Weights, TheReferenceAgrees) {
  const Golden golden = LoadGolden("sw-full");
  const auto cpu = BoundContext(kernels::Device::kCpu),
             ref = BoundContext(kernels::Device::kReference);
  const auto distance = [](const std::vector<float>& a, const std::vector<float>& b) {
    double squares = 0;
    for (size_t i = 0; i < a.size(); ++i) squares += std::pow(double{a[i]} - b[i], 2);
    return std::sqrt(squares / static_cast<double>(a.size()));
  };
  const auto logits = [&](const LanguageModel& model, kernels::DeviceContext& context) {
    Session session(model, context, golden.sequences[0], 24);
    session.Feed(session.remaining());
    return session.logits();
  };
  const auto rounded = LoadInt8(golden.folder, *cpu, kernels::DType::kF32);
  const std::vector<float> actual = logits(*rounded, *cpu);
  const double from_reference =
      distance(actual, logits(*LoadInt8(golden.folder, *ref, kernels::DType::kF32), *ref));
  const double from_exact = distance(actual, logits(*LoadModel(golden.folder, *cpu), *cpu));
  EXPECT_GT(from_exact, 0);
  EXPECT_LT(from_reference, from_exact / 4);
}

TEST(Int8Weights, AreSmallerAndSaySo) {
  const auto context = BoundContext(kernels::Device::kCpu);
  const std::string folder = LoadGolden("sw-ovq").folder;
  const auto rounded = LoadInt8(folder, *context, kernels::DType::kBF16);
  const auto plain = LoadModel(folder, *context, kernels::DType::kBF16);
  EXPECT_EQ(rounded->weights(), kernels::WeightType::kInt8);
  EXPECT_EQ(plain->weights(), kernels::WeightType::kAsComputed);
  EXPECT_LT(rounded->weight_count().bytes, plain->weight_count().bytes);
  EXPECT_EQ(rounded->fingerprint(), plain->fingerprint());
}

// By the config alone, and by the loaded model, whatever its family. Of a layer of this one: q, k,
// v and o, the gated feed-forward, beta of 2 heads and two norms; then the head and its norm.
TEST(Int8Weights, AreCountedBeforeTheyAreLoaded) {
  const auto context = BoundContext(kernels::Device::kCpu);
  constexpr auto kF32 = kernels::DType::kF32;
  const auto int8 = [](size_t out, size_t in) { return out * (in + sizeof(float)); };
  const size_t layer = int8(64 + 2 * 64, 64) + int8(64, 64) + int8(2 * 96, 64) + int8(64, 96) +
                       sizeof(float) * (2 + 2 * 64);
  const size_t expected = 4 * layer + int8(101, 64) + sizeof(float) * 64;
  EXPECT_EQ(LoadInt8(LoadGolden("sw-ovq").folder, *context, kF32)->weight_count().bytes, expected);
  for (const char* name :
       {"sw-ovq", "kvm/kvm-alternate", "published/granitemoehybrid-moe", "published/nemotron_h-moe",
        "published/qwen3_5_moe-hub", "published/kimi_linear-hub", "transformer-vq"}) {
    if (!LoadConfig(LoadGolden(name).folder).ok()) GTEST_FAIL() << name;
    const auto model = LoadInt8(LoadGolden(name).folder, *context, kF32);
    const kernels::WeightCount &loaded = model->weight_count(),
                               planned = LanguageModel::CountWeights(
                                   model->config(), {kF32, kernels::WeightType::kInt8});
    EXPECT_EQ(planned.bytes, loaded.bytes) << name;
    EXPECT_EQ(planned.expert_bytes, loaded.expert_bytes) << name;
    EXPECT_EQ(planned.idle_parameters, loaded.idle_parameters) << name;
    EXPECT_EQ(planned.ReadBy(1) < static_cast<double>(planned.bytes), planned.idle_parameters > 0);
  }
}

// Rows of in_proj that give dt stay as they are: a model that differs from another in them alone
// and by less than a unit of their int8 has other logits.
TEST(Int8Weights, GatesOfRecurrencesAreNotRounded) {
  EditedModel model("mamba2-ovq");
  ModelOptions options = kSmallSessions;
  options.weights = kernels::WeightType::kInt8;
  options.compute_dtype = kernels::DType::kF32;
  const auto logits = [&] {
    const auto loaded = model.Load(options);
    Check(loaded.ok(), Message(loaded.status()).c_str());
    return Logits(**loaded, *model.context);
  };
  const std::vector<float> before = logits();
  auto& [shape, bytes] = model.tensors.at("model.layers.0.self_attn.in_proj.weight");
  float last;  // of the last head's dt
  std::memcpy(&last, bytes.data() + bytes.size() - sizeof(float), sizeof(float));
  last *= 1.0009765625f;
  std::memcpy(bytes.data() + bytes.size() - sizeof(float), &last, sizeof(float));
  EXPECT_NE(logits(), before);
}

}  // namespace
}  // namespace ovq::model::test
