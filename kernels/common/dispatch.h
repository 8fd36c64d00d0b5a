// Dispatch runs a kernel's implementation for the context's device. OVQ_ON_EVERY_DEVICE declares
// the three implementations.
#pragma once

#include "kernels/common/device.h"

namespace ovq {

// Declares Fn in the namespaces ref, cpu and cuda, with the type of ovq::Fn.
#define OVQ_ON_EVERY_DEVICE(Fn) \
  namespace ref {               \
  decltype(ovq::Fn) Fn;         \
  }                             \
  namespace cpu {               \
  decltype(ovq::Fn) Fn;         \
  }                             \
  namespace cuda {              \
  decltype(ovq::Fn) Fn;         \
  }

// Calls the implementation for context's device. All take (DeviceContext&, Args...). A build
// without CUDA names CudaFn but never links it.
template <auto RefFn, auto CpuFn, auto CudaFn, class... Args>
auto Dispatch(DeviceContext& context, Args&&... args) {
  if constexpr (kWithCuda) {
    if (context.device() == Device::kCuda) return CudaFn(context, static_cast<Args&&>(args)...);
  }
  if (context.device() == Device::kReference) return RefFn(context, static_cast<Args&&>(args)...);
  Check(context.device() == Device::kCpu, "no kernel for this device");
  return CpuFn(context, static_cast<Args&&>(args)...);
}

}  // namespace ovq
