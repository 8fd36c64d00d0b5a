// The one-page forward pass agrees with float64 logits of independent code, to which
// fixtures_test.cc also holds the decoder.
#include "tests/model/plain_forward.h"

#include <gtest/gtest.h>

#include <cmath>

#include "absl/strings/str_cat.h"
#include "model/safetensors.h"
#include "tests/model/golden_util.h"

namespace ovq::model::test {
namespace {

// The expected logits are float64 results that were stored as float32.
constexpr double kPlainTolerance = 1e-5;

class PlainForward : public ::testing::TestWithParam<const char*> {
 protected:
  void ExpectLogits(size_t sequence, int64_t max_centroids, const std::string& tensor) {
    const std::vector<double> logits =
        plain::Forward(golden_.folder, golden_.sequences[sequence], max_centroids);
    const kernels::TensorView expected = View(expected_, tensor);
    ASSERT_EQ(logits.size(), static_cast<size_t>(expected.shape.elements()));
    double worst = 0;
    for (size_t i = 0; i < logits.size(); ++i) {
      const double error = std::abs(logits[i] - expected.as<float>()[i]);
      if (!(error <= worst)) worst = error;
    }
    EXPECT_LE(worst, kPlainTolerance) << tensor;
  }

  const Golden golden_ = LoadGolden(GetParam());
  const SafetensorsFile expected_ =
      OpenSafetensors(golden_.folder + "/expected.safetensors").value();
};

TEST_P(PlainForward, AgreesWithGoldenLogits) {
  for (size_t i = 0; i < golden_.sequences.size(); ++i) {
    ExpectLogits(i, 0, absl::StrCat("logits.", i));
    if (golden_.override_slot_cap == 0) continue;
    ExpectLogits(i, golden_.override_slot_cap, absl::StrCat("logits_override.", i));
  }
}

INSTANTIATE_TEST_SUITE_P(Golden, PlainForward, ::testing::Values("sw-ovq", "sw-ovq-gqa", "sw-full"),
                         [](const auto& info) {
                           std::string name = info.param;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

}  // namespace
}  // namespace ovq::model::test
