// A state made by one device continues on another, in types that both have.
#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "kernels/common/dispatch.h"
#include "tests/model/golden_util.h"
#include "tests/test_util.h"

namespace ovq::model::test {
namespace {

struct MovedCase {
  const char* name;
  kernels::Device from, to;
  kernels::DType compute, state;
};

class MovedState : public ::testing::TestWithParam<MovedCase> {
 protected:
  void SetUp() override {
    for (const kernels::Device device : {GetParam().from, GetParam().to}) {
      const std::string missing = kernels::test::WhyNoDevice(device);
      if (!missing.empty()) GTEST_SKIP() << missing;
    }
  }
};

// Results differ by the order of sums, in bfloat16 also by the rounding of weights and, where a
// state's rounding goes the other way, by a unit in one channel. A misread state is off by the size
// of the logits.
TEST_P(MovedState, GoesOnAsItWould) {
  const MovedCase& c = GetParam();
  const Golden golden = LoadGolden(c.name);
  const auto from = BoundContext(c.from), to = BoundContext(c.to);
  const auto source = LoadModel(golden.folder, *from, c.compute, c.state),
             target = LoadModel(golden.folder, *to, c.compute, c.state);
  const auto longest = std::ranges::max_element(
      golden.sequences, {}, [](const std::vector<int32_t>& tokens) { return tokens.size(); });
  const auto n_tokens = static_cast<int64_t>(longest->size());
  constexpr int64_t kCap = 40;
  double largest = 0, worst = 0;
  for (const int64_t moved_at : {n_tokens / 3, n_tokens / 2 + 1, n_tokens - 5}) {
    Session stays(*source, *from, *longest, kCap), moves(*target, *to, *longest, kCap);
    stays.Feed(moved_at);
    moves.ContinueFrom(stays);
    ASSERT_EQ(moves.LiveBytes(), stays.LiveBytes());
    const size_t before = stays.logits().size();
    const int64_t n = std::min<int64_t>(moves.remaining(), 24);
    stays.Feed(n);
    moves.Feed(n);
    ASSERT_EQ(moves.logits().size(), stays.logits().size() - before);
    for (size_t i = 0; i < moves.logits().size(); ++i) {
      const double expected = stays.logits()[before + i];
      largest = std::max(largest, std::abs(expected));
      const double error = std::abs(moves.logits()[i] - expected);
      worst = std::isnan(error) ? HUGE_VAL : std::max(worst, error);
    }
  }
  EXPECT_LE(worst, (c.compute == kernels::DType::kBF16 ? 0.05 : 0.01) * largest);
}

// Moves to and from the CPU.
std::vector<MovedCase> MovedCases() {
  std::vector<MovedCase> cases;
  std::vector<kernels::Device> others = {kernels::Device::kReference};
  if (kernels::kWithCuda) others.push_back(kernels::Device::kCuda);
  for (const kernels::Device other : others) {
    for (const char* name : {"sw-ovq", "sw-ovq-gqa", "sw-full", "sw-closest-pair", "keydiff-shares",
                             "ovq-delta", "ovq-normalize", "kvm/bswa-sinks"}) {
      for (const auto& [compute, state] : {std::pair(kernels::DType::kF32, kernels::DType::kI8),
                                           {kernels::DType::kBF16, kernels::DType::kI8},
                                           {kernels::DType::kBF16, kernels::DType::kBF16}}) {
        // With rounded products, other pairs are the closest and other tokens the most usual.
        if (compute == kernels::DType::kBF16 && (std::string_view(name) == "sw-closest-pair" ||
                                                 std::string_view(name) == "keydiff-shares"))
          continue;
        cases.push_back({name, kernels::Device::kCpu, other, compute, state});
        cases.push_back({name, other, kernels::Device::kCpu, compute, state});
      }
    }
  }
  return cases;
}

INSTANTIATE_TEST_SUITE_P(Golden, MovedState, ::testing::ValuesIn(MovedCases()),
                         [](const auto& info) {
                           const MovedCase& c = info.param;
                           std::string name = absl::StrCat(
                               c.name, c.from == kernels::Device::kCpu ? "_to_" : "_of_",
                               kernels::DeviceName(c.from == kernels::Device::kCpu ? c.to : c.from),
                               "_in_", kernels::DTypeName(c.compute), "_state_",
                               kernels::DTypeName(c.state));
                           for (char& ch : name)
                             ch = std::isalnum(static_cast<unsigned char>(ch)) ? ch : '_';
                           return name;
                         });

}  // namespace
}  // namespace ovq::model::test
