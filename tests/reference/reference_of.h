// Registers the references: naive loops in double precision, one for every kernel, with which tests
// compare the kernels of the devices. A program that links this folder runs them on
// Device::kReference.
#pragma once

#include "kernels/common/dispatch.h"

namespace ovq::kernels {

// An object `const ReferenceOf<CpuFn> name = fn;` makes fn the reference of CpuFn when the program
// starts.
template <auto CpuFn>
struct ReferenceOf {
  ReferenceOf(decltype(CpuFn) fn) { reference_of<CpuFn> = fn; }
};

}  // namespace ovq::kernels
