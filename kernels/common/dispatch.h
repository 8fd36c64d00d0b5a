// Dispatch runs a kernel's implementation for the context's device. OVQ_ON_EVERY_DEVICE declares
// both implementations.
#pragma once

#include "kernels/common/device.h"

namespace ovq::kernels {

// Declares Fn in the namespaces cpu and cuda, with the type of ovq::kernels::Fn.
#define OVQ_ON_EVERY_DEVICE(Fn)  \
  namespace cpu {                \
  decltype(ovq::kernels::Fn) Fn; \
  }                              \
  namespace cuda {               \
  decltype(ovq::kernels::Fn) Fn; \
  }

// The function that Device::kReference runs in place of CpuFn. tests/reference sets it; it is null
// in programs that do not link that library.
template <auto CpuFn>
decltype(CpuFn) reference_of = nullptr;

// Calls the implementation for context's device. All take (DeviceContext&, Args...). A build
// without CUDA names CudaFn but never links it.
template <auto CpuFn, auto CudaFn, class... Args>
auto Dispatch(DeviceContext& context, Args&&... args) {
  if constexpr (kWithCuda) {
    if (context.device() == Device::kCuda) return CudaFn(context, static_cast<Args&&>(args)...);
  }
  if (context.device() == Device::kReference) {
    Check(reference_of<CpuFn> != nullptr, "this program is linked without the references");
    return reference_of<CpuFn>(context, static_cast<Args&&>(args)...);
  }
  Check(context.device() == Device::kCpu, "no kernel for this device");
  return CpuFn(context, static_cast<Args&&>(args)...);
}

}  // namespace ovq::kernels
