// Launching: cudaLaunchKernelEx and what it needs. Kernel arguments are kept by value, so that a
// recorded launch can be replayed.
#pragma once

#include <cstddef>
#include <functional>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "tests/simt/runtime_api.h"

enum cudaLaunchAttributeID {
  cudaLaunchAttributeIgnore = 0,
  cudaLaunchAttributeAccessPolicyWindow = 1,
  cudaLaunchAttributeCooperative = 2,
  cudaLaunchAttributeClusterDimension = 4,
  cudaLaunchAttributeProgrammaticStreamSerialization = 6,
  cudaLaunchAttributePriority = 8,
};
union cudaLaunchAttributeValue {
  char pad[64];
  int cooperative;
  int programmaticStreamSerializationAllowed;
  int priority;
};
struct cudaLaunchAttribute {
  cudaLaunchAttributeID id;
  cudaLaunchAttributeValue val;
};
struct cudaLaunchConfig_t {
  dim3 gridDim;
  dim3 blockDim;
  size_t dynamicSmemBytes;
  cudaStream_t stream;
  cudaLaunchAttribute* attrs;
  unsigned numAttrs;
};

namespace ovq::simt {

// Runs the launch or records it. body is one thread's call of the kernel; pointers are those of its
// arguments that are pointers.
cudaError_t LaunchKernel(const cudaLaunchConfig_t& config, const void* kernel,
                         std::vector<const void*> pointers, std::function<void()> body);

}  // namespace ovq::simt

template <class... Parameters, class... Arguments>
cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t* config, void (*kernel)(Parameters...),
                               Arguments&&... arguments) {
  static_assert((sizeof(Parameters) + ... + 0) <= 4096, "more than a launch can carry");
  static_assert((std::is_trivially_copyable_v<Parameters> && ...), "is copied bit by bit");
  std::tuple<std::decay_t<Parameters>...> values(std::forward<Arguments>(arguments)...);
  std::vector<const void*> pointers;
  const auto add = [&](const auto& value) {
    if constexpr (std::is_pointer_v<std::decay_t<decltype(value)>>) {
      pointers.push_back(const_cast<const void*>(static_cast<const volatile void*>(value)));
    }
  };
  std::apply([&](const auto&... value) { (add(value), ...); }, values);
  return ovq::simt::LaunchKernel(*config, reinterpret_cast<const void*>(kernel),
                                 std::move(pointers),
                                 [kernel, values] { std::apply(kernel, values); });
}
