// Fixtures for tests that run on each device, and on a CPU with each of its instruction sets. If a
// device cannot be used, its tests skip and say why.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tests/test_util.h"

namespace ovq::kernels::test {

// Its parameters are TestDevices().
class DeviceTest : public testing::TestWithParam<Device> {
 protected:
  void SetUp() override {
    const std::string why_not = WhyNoDevice(GetParam());
    if (!why_not.empty()) GTEST_SKIP() << why_not;
    context_ = MakeContext(GetParam());
  }
  std::unique_ptr<DeviceContext> context_;  // with one thread
};
inline std::string NameOfDevice(const testing::TestParamInfo<Device>& info) {
  return DeviceName(info.param);
}
inline std::vector<Device> DevicesButReference() {
  std::vector<Device> devices = TestDevices();
  std::erase(devices, Device::kReference);
  return devices;
}

struct Target {
  Device device;
  int64_t instructions;  // a Highway target; kCpu only
};
// Returns all targets except the reference.
inline std::vector<Target> Targets() {
  std::vector<Target> targets;
  for (int64_t target : HighwayTargets()) targets.push_back({Device::kCpu, target});
  for (Device device : TestDevices()) {
    if (device == Device::kCuda) targets.push_back({device, 0});
  }
  return targets;
}
inline std::string TargetName(const testing::TestParamInfo<Target>& info) {
  return info.param.device == Device::kCpu ? HighwayTargetName(info.param.instructions)
                                           : DeviceName(info.param.device);
}

// Its parameters are Targets(). The reference has a context of its own; the tested device runs in
// another, with two threads.
class TargetTest : public testing::TestWithParam<Target> {
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

}  // namespace ovq::kernels::test
