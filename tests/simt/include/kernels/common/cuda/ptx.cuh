// The host executor's version of the header of the same path (tests/simt/README.md).
#pragma once

#include <cstdint>

#include "kernels/common/cuda/shared.cuh"
#include "tests/simt/tensor_core.h"

namespace ovq::kernels::cuda {

inline void WaitForKernelsBefore() { simt::Executor::Get().WaitForKernelsBefore(); }
inline void AllowNextKernel() {}

// The data is seen by nobody before the thread waits for it.
__attribute__((noinline)) inline void CopyAsync16(SharedPtr<uint4> to, const void* from,
                                                  bool valid) {
  simt::Executor::Get().CopyAsync(to.offset(), from, valid, __builtin_return_address(0));
}
inline void CommitCopies() { simt::Executor::Get().CommitCopies(); }
template <int kPending>
void WaitCopies() {
  simt::Executor::Get().WaitCopies(kPending);
}

__attribute__((noinline)) inline void LoadMatrices(
    uint32_t (&r)[4], SharedPtr<const uint4> row,
    std::source_location where = std::source_location::current()) {
  simt::LoadMatrices(r, row.offset(), false, where, __builtin_return_address(0));
}
__attribute__((noinline)) inline void LoadMatricesTransposed(
    uint32_t (&r)[4], SharedPtr<const uint4> row,
    std::source_location where = std::source_location::current()) {
  simt::LoadMatrices(r, row.offset(), true, where, __builtin_return_address(0));
}
inline void MmaBF16(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1,
                    std::source_location where = std::source_location::current()) {
  simt::MmaBF16(d, a, b0, b1, where);
}

// Rounded correctly, where the hardware is within 2 ulp; subnormals are flushed like there.
inline float Exp2Approx(float x) { return simt::Exp2FlushingSubnormals(x); }
inline uint32_t PackBF16(float low, float high) { return simt::PackBF16(low, high); }

}  // namespace ovq::kernels::cuda
