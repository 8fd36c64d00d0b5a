// The project's only device switch.
#pragma once

#include "kernels/common/device.h"

namespace ovq {

// Declares Fn in the namespaces of the three devices, with the type of the Fn that stands for all.
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

// Runs the implementation of context's device. All take (DeviceContext&, Args...). Without CUDA the
// third is named but never linked.
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
