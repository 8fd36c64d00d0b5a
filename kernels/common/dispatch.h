// The project's only device switch.
#pragma once

#include "kernels/common/device.h"

namespace ovq {

// Runs the implementation of context's device. Both take (DeviceContext&, Args...).
template <auto RefFn, auto CpuFn, class... Args>
void Dispatch(DeviceContext& context, Args&&... args) {
  switch (context.device()) {
    case Device::kReference:
      return RefFn(context, static_cast<Args&&>(args)...);
    case Device::kCpu:
      return CpuFn(context, static_cast<Args&&>(args)...);
    case Device::kCuda:
      break;
  }
  Check(false, "no kernel for this device");
}

}  // namespace ovq
