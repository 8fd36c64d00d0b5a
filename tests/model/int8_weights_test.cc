// Models with ModelOptions::weights = kInt8.
#include <gtest/gtest.h>

#include <cmath>

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
  for (const char* name : {"sw-ovq", "sw-gdn", "sw-full"}) {
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
  EXPECT_LT(rounded->weight_bytes(), plain->weight_bytes());
  EXPECT_EQ(rounded->fingerprint(), plain->fingerprint());
}

}  // namespace
}  // namespace ovq::model::test
