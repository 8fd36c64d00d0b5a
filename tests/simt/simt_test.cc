#include "tests/simt/simt.h"

#include <cuda_runtime.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kernels/common/cuda/ptx.cuh"

namespace {

using ovq::cuda::DynamicShared;
using ovq::cuda::SharedPtr;

__global__ void Empty() {}

__global__ void SumWarps(const float* __restrict__ in, float* __restrict__ out) {
  const SharedPtr<float> sums = DynamicShared<float>(0);
  float x = in[blockIdx.x * blockDim.x + threadIdx.x];
  for (int delta = 16; delta > 0; delta /= 2) x += __shfl_xor_sync(0xffffffff, x, delta);
  if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = x;
  __syncthreads();
  if (threadIdx.x == 0) {
    float total = 0;
    for (unsigned w = 0; w < blockDim.x / 32; ++w) total += sums[w];
    out[blockIdx.x] = total;
  }
}

TEST(Simt, Sum) {
  float* p;
  ASSERT_EQ(cudaMalloc(&p, 256 * 4 + 16), cudaSuccess);
  for (int i = 0; i < 256; ++i) p[i] = i;
  cudaLaunchConfig_t config = {};
  config.gridDim = 2;
  config.blockDim = 128;
  config.dynamicSmemBytes = 64;
  ASSERT_EQ(cudaLaunchKernelEx(&config, SumWarps, p, p + 256), cudaSuccess);
  EXPECT_EQ(p[256], 127 * 64);
  EXPECT_EQ(p[257], 127 * 64 + 128 * 128);
  ASSERT_EQ(cudaLaunchKernelEx(&config, Empty), cudaSuccess);
  EXPECT_EQ(cudaFree(p), cudaSuccess);
}

}  // namespace
