#include "tests/test_util.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>

#include "kernels/common/dispatch.h"
#include "kernels/common/highway_targets.h"
#include "kernels/common/instruction_sets.h"
//
#include "hwy/highway.h"

namespace ovq::kernels::test {
namespace {

// SplitMix64.
uint64_t NextRandom(uint64_t& state) {
  uint64_t z = (state += 0x9e3779b97f4a7c15u);
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

double NextUnit(uint64_t& state) {  // in (0, 1)
  return (static_cast<double>(NextRandom(state) >> 12) + 0.5) * 0x1p-52;
}

}  // namespace

std::vector<Device> TestDevices() {
  std::vector<Device> devices = {Device::kCpu};
  // A sanitizer sees the reference where others are compared with it.
  if (!IsSlow(Device::kCpu)) devices.insert(devices.begin(), Device::kReference);
  if (kWithCuda) devices.push_back(Device::kCuda);
  return devices;
}

bool IsSlow([[maybe_unused]] Device device) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  return true;
#else
  return device != Device::kCpu;
#endif
}

std::string WhyNoDevice(Device device) {
  const auto context = DeviceContext::Make(device, 1);
  return context.ok() ? "" : std::string(context.status().message());
}

std::unique_ptr<DeviceContext> MakeContext(Device device, int n_threads) {
  absl::StatusOr<std::unique_ptr<DeviceContext>> context = DeviceContext::Make(device, n_threads);
  EXPECT_TRUE(context.ok()) << context.status();
  return *std::move(context);
}

std::vector<float> RandomNormal(size_t n, uint64_t seed) {
  std::vector<float> values(n);
  for (float& value : values) {
    const double radius = std::sqrt(-2 * std::log(NextUnit(seed)));
    value = static_cast<float>(radius * std::cos(2 * std::numbers::pi * NextUnit(seed)));
  }
  return values;
}

std::vector<BF16> Rounded(std::span<const float> x) {
  std::vector<BF16> y(x.size());
  std::transform(x.begin(), x.end(), y.begin(), RoundToBF16);
  return y;
}

std::vector<float> Widened(std::span<const BF16> x) {
  std::vector<float> y(x.size());
  std::transform(x.begin(), x.end(), y.begin(), [](BF16 v) { return ToFloat(v); });
  return y;
}

void AssertClose(std::span<const float> actual, std::span<const float> expected,
                 const std::function<double(size_t)>& tolerance, const std::string& what) {
  ASSERT_EQ(actual.size(), expected.size()) << what;
  double worst = 0;
  size_t where = 0;
  for (size_t i = 0; i < actual.size(); ++i) {
    if (actual[i] == expected[i]) continue;  // infinities may be equal, too
    const double error = std::abs(double{actual[i]} - expected[i]);
    double ratio = error / tolerance(i);
    if (!(ratio >= 0)) ratio = std::numeric_limits<double>::infinity();
    if (ratio > worst) {
      worst = ratio;
      where = i;
    }
  }
  ASSERT_LE(worst, 1) << what << ": element " << where << " of " << actual.size() << " is "
                      << actual[where] << ", expected " << expected[where] << " within "
                      << tolerance(where);
}

void AssertClose(std::span<const float> actual, std::span<const float> expected, double tolerance,
                 const std::string& what) {
  AssertClose(
      actual, expected, [tolerance](size_t) { return tolerance; }, what);
}

void AssertSameBits(std::span<const float> actual, std::span<const float> expected,
                    const std::string& what) {
  ASSERT_EQ(actual.size(), expected.size()) << what;
  for (size_t i = 0; i < actual.size(); ++i) {
    ASSERT_EQ(std::bit_cast<uint32_t>(actual[i]), std::bit_cast<uint32_t>(expected[i]))
        << what << ": element " << i << " of " << actual.size() << " is " << actual[i]
        << ", expected " << expected[i];
  }
}

std::vector<int64_t> HighwayTargets() {
  const absl::Status capped = CapInstructionSets();
  Check(capped.ok(), "OVQ_MAX_ISA has a value that it may have");
  std::vector<int64_t> targets = hwy::SupportedAndGeneratedTargets();
  hwy::GetChosenTarget().DeInit();  // The call before chose the machine's best, whatever the cap.
  return targets;
}

std::string HighwayTargetName(int64_t target) { return hwy::TargetName(target); }

ScopedHighwayTarget::ScopedHighwayTarget(int64_t target) { hwy::GetChosenTarget().Update(target); }

ScopedHighwayTarget::~ScopedHighwayTarget() { hwy::GetChosenTarget().DeInit(); }

}  // namespace ovq::kernels::test
