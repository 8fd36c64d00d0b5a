// Utilities of the kernels' tests: seeded data, buffers that detect writes outside their bounds,
// comparison with a derived tolerance, and a choice of instruction set.
#pragma once

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "kernels/common/device.h"
#include "kernels/common/tensor.h"

namespace ovq::kernels::test {

// Unit roundoff: the largest relative error of one rounding to nearest.
inline constexpr double kRoundF32 = 0x1p-24;
inline constexpr double kRoundBF16 = 0x1p-9;

std::unique_ptr<DeviceContext> MakeContext(Device device, int n_threads = 1);

// Returns ref (but not in sanitized programs), cpu, and cuda if the kernels were built with it.
// Tests on cuda skip without a GPU and say why.
std::vector<Device> TestDevices();
// Returns "" if the device can be used, else the reason why not.
std::string WhyNoDevice(Device device);
// True for the reference, the host executor and sanitized programs, which take many times as long:
// tests that repeat the same code with many lengths, splits or batch compositions use fewer of
// them.
bool IsSlow(Device device);

// Returns normally distributed numbers, the same for a seed on every machine.
std::vector<float> RandomNormal(size_t n, uint64_t seed);
std::vector<BF16> Rounded(std::span<const float> x);  // rounds to nearest
std::vector<float> Widened(std::span<const BF16> x);  // exact

// A buffer of all-ones bytes (NaN in every float type) between two guard zones.
template <class T>
class GuardedBuffer {
 public:
  explicit GuardedBuffer(size_t n) : n_(n), bytes_(n * sizeof(T) + 2 * kGuardBytes) {
    std::memset(bytes_.data(), kGuard, bytes_.size());
    std::memset(data(), 0xff, n * sizeof(T));
  }
  explicit GuardedBuffer(std::span<const T> values) : GuardedBuffer(values.size()) {
    std::memcpy(data(), values.data(), values.size_bytes());
  }
  ~GuardedBuffer() {
    const std::byte* after = bytes_.data() + kGuardBytes + n_ * sizeof(T);
    for (size_t i = 0; i < kGuardBytes; ++i) {
      if (bytes_[i] != std::byte{kGuard} || after[i] != std::byte{kGuard}) {
        ADD_FAILURE() << "written " << (bytes_[i] != std::byte{kGuard} ? "before" : "after")
                      << " a buffer of " << n_ << " elements";
        return;
      }
    }
  }
  GuardedBuffer(const GuardedBuffer&) = delete;
  GuardedBuffer& operator=(const GuardedBuffer&) = delete;

  T* data() { return reinterpret_cast<T*>(bytes_.data() + kGuardBytes); }
  size_t size() const { return n_; }
  std::span<T> span() { return {data(), n_}; }
  T& operator[](size_t i) { return data()[i]; }
  TensorView View(Shape shape);

 private:
  static constexpr size_t kGuardBytes = 256;
  static constexpr unsigned char kGuard = 0xa5;
  size_t n_;
  std::vector<std::byte> bytes_;
};

template <class T>
constexpr DType kDTypeFor = DType::kF32;
template <>
inline constexpr DType kDTypeFor<BF16> = DType::kBF16;
template <>
inline constexpr DType kDTypeFor<uint16_t> = DType::kF16;
template <>
inline constexpr DType kDTypeFor<int32_t> = DType::kI32;

template <class T>
TensorView GuardedBuffer<T>::View(Shape shape) {
  EXPECT_EQ(static_cast<size_t>(shape.elements()), n_);
  return {data(), kDTypeFor<T>, shape};
}
template <class T>
TensorView MakeView(std::vector<T>& values, Shape shape) {
  EXPECT_EQ(static_cast<size_t>(shape.elements()), values.size());
  return {values.data(), kDTypeFor<T>, shape};
}

// An array in a device's memory between two guard zones.
template <class T>
class DeviceArray {
 public:
  // Makes n elements of all-ones bytes (NaN in every float type).
  DeviceArray(DeviceContext& context, size_t n) : DeviceArray(context, n, nullptr) {}
  DeviceArray(DeviceContext& context, std::span<const T> values)
      : DeviceArray(context, values.size(), values.data()) {}

  T* data() const { return memory_.as<T>() + kGuard; }
  std::span<T> span() const { return {data(), n_}; }
  TensorView View(Shape shape) const {
    EXPECT_EQ(static_cast<size_t>(shape.elements()), n_);
    return {data(), kDTypeFor<T>, shape};
  }
  // Waits for all work so far, checks the guard zones and returns the elements.
  std::vector<T> Read() const {
    std::vector<T> all(n_ + 2 * kGuard);
    context_.CopyToHost(all.data(), memory_.as<void>(), all.size() * sizeof(T));
    const std::vector<std::byte> guard(kGuard * sizeof(T), kGuardByte);
    EXPECT_EQ(std::memcmp(all.data(), guard.data(), guard.size()), 0) << "written before " << n_;
    EXPECT_EQ(std::memcmp(all.data() + kGuard + n_, guard.data(), guard.size()), 0)
        << "written after " << n_;
    return {all.begin() + kGuard, all.end() - kGuard};
  }

 private:
  static constexpr size_t kGuard = 64;  // elements
  static constexpr std::byte kGuardByte{0xa5};

  DeviceArray(DeviceContext& context, size_t n, const T* values) : context_(context), n_(n) {
    std::vector<std::byte> bytes((n + 2 * kGuard) * sizeof(T), kGuardByte);
    std::byte* elements = bytes.data() + kGuard * sizeof(T);
    std::memset(elements, 0xff, n * sizeof(T));
    if (values != nullptr) std::memcpy(elements, values, n * sizeof(T));
    memory_ = context.Upload(bytes.data(), bytes.size());
  }

  DeviceContext& context_;
  size_t n_;
  Buffer memory_;
};

// Asserts |actual - expected| <= tolerance(i) for every element; reports the worst one, measured in
// tolerances. NaN never passes.
void AssertClose(std::span<const float> actual, std::span<const float> expected,
                 const std::function<double(size_t)>& tolerance, const std::string& what);
void AssertClose(std::span<const float> actual, std::span<const float> expected, double tolerance,
                 const std::string& what);

// Asserts equal bits; reports the first element that differs.
void AssertSameBits(std::span<const float> actual, std::span<const float> expected,
                    const std::string& what);

// Returns the instruction sets that the kernels were compiled for and this machine has.
std::vector<int64_t> HighwayTargets();
std::string HighwayTargetName(int64_t target);

// Makes kernels run on `target` while it exists.
class ScopedHighwayTarget {
 public:
  explicit ScopedHighwayTarget(int64_t target);
  ~ScopedHighwayTarget();
  ScopedHighwayTarget(const ScopedHighwayTarget&) = delete;
  ScopedHighwayTarget& operator=(const ScopedHighwayTarget&) = delete;
};

}  // namespace ovq::kernels::test
