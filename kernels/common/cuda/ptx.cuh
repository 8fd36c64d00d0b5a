// The PTX instructions that kernels use (compute capability 8.0 and later), one function each. All
// lanes of the warp must call the tensor core functions together. tests/simt has a second version
// of this header that emulates them with the fragment layouts of the PTX manual, sections "Matrix
// Fragments for mma.m16n8k16" and "ldmatrix".
#pragma once

#include <cstdint>

#include "kernels/common/cuda/shared.cuh"

namespace ovq::kernels::cuda {

// griddepcontrol.wait, in a kernel launched by LaunchEarly: waits until the kernels before it on
// the stream have ended and all that they wrote is visible. Nothing to wait for in another kernel.
__device__ inline void WaitForKernelsBefore() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// griddepcontrol.launch_dependents: lets a next kernel that is launched by LaunchEarly begin once
// every thread block of this one has come here or ended. It orders no memory.
__device__ inline void AllowNextKernel() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

__device__ inline uint32_t SharedAddress(const void* p) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}

// cp.async: copies 16 bytes from global to shared memory, both 16-byte aligned, without going
// through registers. valid = false reads nothing and writes zeros.
__device__ inline void CopyAsync16(SharedPtr<uint4> to, const void* from, bool valid) {
  const int source_bytes = valid ? 16 : 0;
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(SharedAddress(to)), "l"(from),
               "r"(source_bytes)
               : "memory");
}
// Closes a group of this thread's copies.
__device__ inline void CommitCopies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// Waits until at most kPending of this thread's groups are unfinished. Other threads see the data
// after a barrier that follows.
template <int kPending>
__device__ inline void WaitCopies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

// ldmatrix.x4: four 8x8 matrices of 16-bit elements. Lane i gives the address of row i % 8 of
// matrix i / 8 (16 bytes, 16-byte aligned). Lane (g, t) = (lane / 4, lane % 4) gets in r[m] of
// matrix m the elements (g, 2t) in the low and (g, 2t + 1) in the high half.
__device__ inline void LoadMatrices(uint32_t (&r)[4], SharedPtr<const uint4> row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(SharedAddress(row))
               : "memory");
}
// ldmatrix.x4.trans: lane (g, t) gets the elements (2t, g) and (2t + 1, g).
__device__ inline void LoadMatricesTransposed(uint32_t (&r)[4], SharedPtr<const uint4> row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(SharedAddress(row))
               : "memory");
}

// d[16, 8] += a[16, 16] b[16, 8], bfloat16 factors, float32 sums. With (g, t) as above:
//   a[0] (g, 2t..) a[1] (g + 8, 2t..) a[2] (g, 2t + 8..) a[3] (g + 8, 2t + 8..)   row, column pair
//   b0 (2t.., g) b1 (2t + 8.., g)                                                row pair, column
//   d[0] (g, 2t) d[1] (g, 2t + 1) d[2] (g + 8, 2t) d[3] (g + 8, 2t + 1)
__device__ inline void MmaBF16(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// ex2.approx.ftz: 2^x to 2 ulp.
__device__ inline float Exp2Approx(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// cvt.rn.bf16x2: two values rounded to nearest even; low in bits 0..15.
__device__ inline uint32_t PackBF16(float low, float high) {
  uint32_t packed;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
  return packed;
}

}  // namespace ovq::kernels::cuda
