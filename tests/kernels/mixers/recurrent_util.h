// What the tests of kernels/mixers/recurrent share: the devices, and steps over sequences with
// states.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "kernels/mixers/mixer.h"
#include "tests/test_util.h"

namespace ovq::test {

// The reference is one context; what is tested runs in another, with two threads, on a CPU once for
// each of its instruction sets.
struct Target {
  Device device;
  int64_t instructions;  // of Highway, kCpu only
};
inline std::vector<Target> Targets() {
  std::vector<Target> targets;
  for (int64_t target : HighwayTargets()) targets.push_back({Device::kCpu, target});
  for (Device device : TestDevices()) {
    if (device == Device::kCuda) targets.push_back({device, 0});
  }
  return targets;
}

class RecurrentTargets : public testing::TestWithParam<Target> {
 protected:
  void SetUp() override {
    const std::string why_not = WhyNoDevice(GetParam().device);
    if (!why_not.empty()) GTEST_SKIP() << why_not;
    if (GetParam().device == Device::kCpu) instructions_.emplace(GetParam().instructions);
    context_ = MakeContext(GetParam().device, 2);
  }
  std::optional<ScopedHighwayTarget> instructions_;
  std::unique_ptr<DeviceContext> context_;
  std::unique_ptr<DeviceContext> ref_ = MakeContext(Device::kReference);
};
inline std::string TargetName(const testing::TestParamInfo<Target>& info) {
  return info.param.device == Device::kCpu ? HighwayTargetName(info.param.instructions)
                                           : DeviceName(info.param.device);
}

// Sequences of a step: rows, first positions, what the sessions keep.
struct Sequences {
  std::vector<int32_t> lengths;
  std::vector<int64_t> starts;
  std::vector<std::vector<float>> states;
};
struct Result {
  std::vector<float> y;
  std::vector<std::vector<float>> states;
};

// Runs fn(context, seqs) with the states in the device's memory; fn returns y.
template <class Fn>
Result RunStep(DeviceContext& context, const Sequences& sequences, Fn fn) {
  std::vector<int32_t> row_begin{0};
  for (int32_t n : sequences.lengths) row_begin.push_back(row_begin.back() + n);
  std::vector<DeviceArray<float>> states;
  std::vector<std::byte*> bases;
  for (const std::vector<float>& state : sequences.states) states.emplace_back(context, state);
  for (const DeviceArray<float>& state : states) {
    bases.push_back(reinterpret_cast<std::byte*>(state.data()));
  }
  const std::vector<int32_t> caps(sequences.lengths.size(), 2);
  const StagedStep step = StageStep(
      context,
      {.row_begin = row_begin, .start_pos = sequences.starts, .slot_cap = caps, .state = bases},
      {});
  Result result{fn(step.seqs), {}};
  for (const DeviceArray<float>& state : states) result.states.push_back(state.Read());
  return result;
}

inline std::vector<float> RowsOf(const std::vector<float>& x, int64_t begin, int64_t end,
                                 int64_t width) {
  return {x.begin() + begin * width, x.begin() + end * width};
}

inline std::vector<float> Magnitudes(std::vector<float> x) {
  for (float& value : x) value = std::abs(value);
  return x;
}

}  // namespace ovq::test
