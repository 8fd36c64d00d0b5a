// Microseconds of an empty block of 128 threads, of a barrier, a shuffle, a shared access, an mma.
#include <cuda_runtime.h>

#include <chrono>
#include <cstdio>

#include "kernels/common/cuda/ptx.cuh"

namespace {

using ovq::kernels::cuda::DynamicShared;
using ovq::kernels::cuda::SharedPtr;

constexpr int kRepeats = 1000;

__global__ void Empty() {}
__global__ void Barriers() {
  for (int i = 0; i < kRepeats; ++i) __syncthreads();
}
__global__ void Shuffles(int* out) {
  int x = threadIdx.x;
  for (int i = 0; i < kRepeats; ++i) x += __shfl_xor_sync(0xffffffff, x, 1);
  out[threadIdx.x] = x;
}
__global__ void SharedWrites() {
  const SharedPtr<float4> p = DynamicShared<float4>(0);
  for (int i = 0; i < kRepeats; ++i) p[threadIdx.x] = make_float4(i, i, i, i);
}
__global__ void Products(float* out) {
  float d[4] = {};
  const uint32_t a[4] = {};
  for (int i = 0; i < kRepeats; ++i) ovq::kernels::cuda::MmaBF16(d, a, 0, 0);
  out[threadIdx.x] = d[0];
}

template <class... P, class... A>
void Measure(const char* what, double count, dim3 grid, void (*kernel)(P...), A... args) {
  cudaLaunchConfig_t config = {};
  config.gridDim = grid;
  config.blockDim = 128;
  config.dynamicSmemBytes = 4096;
  const auto start = std::chrono::steady_clock::now();
  cudaLaunchKernelEx(&config, kernel, args...);
  const std::chrono::duration<double, std::micro> took = std::chrono::steady_clock::now() - start;
  std::printf("%-40s %8.3f us\n", what, took.count() / count);
}

}  // namespace

int main() {
  void* out;
  cudaMalloc(&out, 1024);
  Measure("empty block of 128 threads", 10000, 10000, Empty);
  Measure("barrier of 128 threads", kRepeats, 1, Barriers);
  Measure("shuffle of a warp", 4 * kRepeats, 1, Shuffles, static_cast<int*>(out));
  Measure("16-byte shared write of a thread", 128 * kRepeats, 1, SharedWrites);
  Measure("mma.m16n8k16 of a warp", 4 * kRepeats, 1, Products, static_cast<float*>(out));
  cudaFree(out);
}
