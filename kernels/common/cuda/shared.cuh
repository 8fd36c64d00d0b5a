// SharedPtr and DynamicShared: a thread block's dynamic shared memory. Kernels keep all their
// shared memory there and touch it only through SharedPtr, which is a plain pointer here and a
// checked one in the host executor of tests/simt.
//
// Rules that keep both meanings equal: read a whole element into a variable with a written type
// (`const float4 x = p[i];`, never `auto` or `p[i].x`), write a whole element (`p[i] = x;`, `p[i]
// += x;`), offset with `p + i`, change the type with SharedCast.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace ovq::kernels::cuda {

template <class T>
using SharedPtr = T*;

// The thread block's dynamic shared memory from byte_offset on, which must be aligned for T.
template <class T>
__device__ inline SharedPtr<T> DynamicShared(uint32_t byte_offset) {
  extern __shared__ uint4 ovq_dynamic_shared[];
  return reinterpret_cast<T*>(reinterpret_cast<unsigned char*>(ovq_dynamic_shared) + byte_offset);
}

template <class To, class From>
__device__ inline SharedPtr<To> SharedCast(From* from) {
  return reinterpret_cast<To*>(from);
}

}  // namespace ovq::kernels::cuda
