// The project's only device switch.
#pragma once

#include "kernels/common/device.h"

namespace ovq {

// Runs the implementation of context's device. All take (DeviceContext&, Args...). Without CUDA the
// third is named but never linked.
template <auto RefFn, auto CpuFn, auto CudaFn, class... Args>
void Dispatch(DeviceContext& context, Args&&... args) {
  switch (context.device()) {
    case Device::kReference:
      return RefFn(context, static_cast<Args&&>(args)...);
    case Device::kCpu:
      return CpuFn(context, static_cast<Args&&>(args)...);
    case Device::kCuda:
      if constexpr (kWithCuda) return CudaFn(context, static_cast<Args&&>(args)...);
  }
  Check(false, "no kernel for this device");
}

}  // namespace ovq
