// The features that kernels may use, compared with plain computations.
#include "tests/simt/simt.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <numeric>
#include <random>

#include "kernels/common/cuda/ptx.cuh"
#include "tests/simt/launch_util.h"

namespace ovq::simt {
namespace {

using kernels::cuda::CommitCopies;
using kernels::cuda::CopyAsync16;
using kernels::cuda::DynamicShared;
using kernels::cuda::SharedCast;
using kernels::cuda::SharedPtr;
using kernels::cuda::WaitCopies;
using ::testing::Each;
using ::testing::ElementsAre;

constexpr unsigned kAll = 0xffffffff;

std::vector<float> RandomFloats(size_t n, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(n);
  for (float& value : values) value = normal(random);
  return values;
}

uint16_t BF16(float x) { return static_cast<uint16_t>(kernels::cuda::PackBF16(x, 0)); }
float FromBF16(uint16_t x) { return std::bit_cast<float>(static_cast<uint32_t>(x) << 16); }

__global__ void SumBlocks(const float* __restrict__ in, float* __restrict__ out) {
  const SharedPtr<float> sums = DynamicShared<float>(0);
  float x = in[blockIdx.x * blockDim.x + threadIdx.x];
  for (int delta = 16; delta > 0; delta /= 2) x += __shfl_xor_sync(kAll, x, delta);
  if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = x;
  __syncthreads();
  if (threadIdx.x == 0) {
    float total = 0;
    for (unsigned w = 0; w < blockDim.x / 32; ++w) total += sums[w];
    out[blockIdx.x] = total;
  }
}

TEST(SimtTest, BlockReduction) {
  std::vector<float> values(512);
  std::iota(values.begin(), values.end(), 0.0f);
  const DeviceArray<float> in(values), out(4);
  ASSERT_EQ(Launch(SumBlocks, 4, 128, 64, in.get(), out.get()), cudaSuccess);
  EXPECT_THAT(out.Read(), ElementsAre(8128, 24512, 40896, 57280));
}

__global__ void Indices(uint3* out) {
  const unsigned block = (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
  const unsigned thread = (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x;
  out[block * 12 + thread] = make_uint3(
      blockIdx.x + 10 * threadIdx.x, blockIdx.y + 10 * threadIdx.y, blockIdx.z + 10 * threadIdx.z);
}

TEST(SimtTest, IndicesInThreeDimensions) {
  const DeviceArray<uint3> out(12 * 12);
  ASSERT_EQ(Launch(Indices, dim3(3, 2, 2), dim3(2, 3, 2), 0, out.get()), cudaSuccess);
  const std::vector<uint3> values = out.Read();
  const uint3 last = values.back(), second = values[13];
  EXPECT_THAT((std::vector<unsigned>{last.x, last.y, last.z}), ElementsAre(12, 21, 11));
  EXPECT_THAT((std::vector<unsigned>{second.x, second.y, second.z}), ElementsAre(11, 0, 0));
}

template <class T>
__global__ void Shuffles(T* out) {
  const T x = static_cast<T>(threadIdx.x) * 3;
  T* mine = out + threadIdx.x * 7;
  mine[0] = __shfl_sync(kAll, x, 5);
  mine[1] = __shfl_sync(kAll, x, 5, 8);
  mine[2] = __shfl_xor_sync(kAll, x, 17);
  mine[3] = __shfl_up_sync(kAll, x, 3);
  mine[4] = __shfl_down_sync(kAll, x, 3);
  mine[5] = __shfl_up_sync(kAll, x, 1, 4);
  mine[6] = __shfl_down_sync(kAll, x, 1, 4);
}

template <class T>
void CheckShuffles() {
  const DeviceArray<T> out(32 * 7);
  ASSERT_EQ(Launch(Shuffles<T>, 1, 32, 0, out.get()), cudaSuccess);
  const std::vector<T> values = out.Read();
  for (int i = 0; i < 32; ++i) {
    const int sources[7] = {5,
                            i / 8 * 8 + 5,
                            i ^ 17,
                            i >= 3 ? i - 3 : i,
                            i < 29 ? i + 3 : i,
                            i % 4 == 0 ? i : i - 1,
                            i % 4 == 3 ? i : i + 1};
    for (int j = 0; j < 7; ++j) EXPECT_EQ(values[i * 7 + j], static_cast<T>(sources[j] * 3));
  }
}

TEST(SimtTest, ShufflesOfAllTypes) {
  CheckShuffles<int>();
  CheckShuffles<unsigned>();
  CheckShuffles<long long>();
  CheckShuffles<unsigned long long>();
  CheckShuffles<float>();
  CheckShuffles<double>();
}

__global__ void Votes(unsigned* out) {
  const unsigned i = threadIdx.x;
  unsigned* mine = out + i * 10;
  mine[0] = __ballot_sync(kAll, i % 3 == 0);
  mine[1] = __any_sync(kAll, i == 31);
  mine[2] = __all_sync(kAll, i < 31);
  mine[3] = __match_any_sync(kAll, i / 16);
  mine[4] = __reduce_add_sync(kAll, i);
  mine[5] = static_cast<unsigned>(__reduce_min_sync(kAll, -static_cast<int>(i)));
  mine[6] = __reduce_max_sync(kAll, i ^ 3);
  mine[7] = static_cast<unsigned>(__syncthreads_count(i < 7));
  mine[8] = static_cast<unsigned>(__syncthreads_or(i == 9));
  mine[9] = static_cast<unsigned>(__syncthreads_and(i != 9));
}

TEST(SimtTest, Votes) {
  const DeviceArray<unsigned> out(320);
  ASSERT_EQ(Launch(Votes, 1, 32, 0, out.get()), cudaSuccess);
  const std::vector<unsigned> values = out.Read();
  for (int i = 0; i < 32; ++i) {
    EXPECT_THAT(std::vector<unsigned>(values.begin() + i * 10, values.begin() + i * 10 + 10),
                ElementsAre(0x49249249, 1, 0, i < 16 ? 0xffff : 0xffff0000, 496,
                            static_cast<unsigned>(-31), 31, 7, 1, 0));
  }
}

// Halves of a warp go separate ways and meet among themselves.
__global__ void PartialWarps(unsigned* out) {
  const bool low = threadIdx.x < 16;
  if (low) {
    out[threadIdx.x] = __reduce_add_sync(0x0000ffff, threadIdx.x);
  } else {
    out[threadIdx.x] = __reduce_add_sync(0xffff0000, threadIdx.x);
  }
  __syncwarp();
}

TEST(SimtTest, PartialWarps) {
  const DeviceArray<unsigned> out(32);
  ASSERT_EQ(Launch(PartialWarps, 1, 32, 0, out.get()), cudaSuccess);
  const std::vector<unsigned> values = out.Read();
  EXPECT_EQ(values[0], 120u);
  EXPECT_EQ(values[31], 376u);
}

__global__ void Atomics(int* sums, float* total) {
  const SharedPtr<unsigned> count = DynamicShared<unsigned>(0);
  if (threadIdx.x == 0) count[0] = 0;
  __syncthreads();
  atomicAdd(count, 2u);
  atomicMax(count + 0, 1u);
  __syncthreads();
  const int i = static_cast<int>(threadIdx.x);
  if (threadIdx.x == 0) {
    const unsigned n = count[0];
    sums[5] = static_cast<int>(n);
  }
  atomicAdd(&sums[0], i);
  atomicMax(&sums[1], i);
  atomicMin(&sums[2], -i);
  atomicOr(&sums[3], i);
  atomicCAS(&sums[4], 0, 7);
  atomicAdd(total, 0.5f);
}

TEST(SimtTest, Atomics) {
  const DeviceArray<int> sums(std::vector<int>(6, 0));
  const DeviceArray<float> total(std::vector<float>(1, 0));
  ASSERT_EQ(Launch(Atomics, 1, 64, 16, sums.get(), total.get()), cudaSuccess);
  EXPECT_THAT(sums.Read(), ElementsAre(2016, 63, -63, 63, 7, 128));
  EXPECT_THAT(total.Read(), ElementsAre(32));
}

// c[16, 8] = a[16, 16] b[16, 8]; b lies in memory as [16, 8] (transposed load) or as its transpose.
template <bool kTransposed>
__global__ void Product(const uint4* a, const uint4* b, float* c) {
  const SharedPtr<uint4> a_shared = DynamicShared<uint4>(0);
  const SharedPtr<uint4> b_shared = a_shared + 32;
  a_shared[threadIdx.x] = a[threadIdx.x];
  if (threadIdx.x < 16) b_shared[threadIdx.x] = b[threadIdx.x];
  if (threadIdx.x >= 16) b_shared[threadIdx.x] = make_uint4(0, 0, 0, 0);
  __syncwarp();
  const int row = static_cast<int>(threadIdx.x) % 16, half = static_cast<int>(threadIdx.x) / 16;
  uint32_t a_parts[4], b_parts[4];
  kernels::cuda::LoadMatrices(a_parts, SharedPtr<const uint4>(a_shared + row * 2 + half));
  if (kTransposed) {
    kernels::cuda::LoadMatricesTransposed(b_parts, b_shared + static_cast<int>(threadIdx.x));
  } else {
    const int lane = static_cast<int>(threadIdx.x);
    kernels::cuda::LoadMatrices(b_parts, b_shared + (lane % 8 * 2 + lane / 8 % 2 + lane / 16 * 16));
  }
  float d[4] = {1, 1, 1, 1};
  kernels::cuda::MmaBF16(d, a_parts, b_parts[0], b_parts[1]);
  const int g = static_cast<int>(threadIdx.x) / 4, t = static_cast<int>(threadIdx.x) % 4;
  c[g * 8 + 2 * t] = d[0];
  c[g * 8 + 2 * t + 1] = d[1];
  c[(g + 8) * 8 + 2 * t] = d[2];
  c[(g + 8) * 8 + 2 * t + 1] = d[3];
}

void CheckProduct(bool transposed) {
  const std::vector<float> a = RandomFloats(256, 1), b = RandomFloats(128, 2);
  std::vector<uint16_t> a_bits(256), b_bits(128);
  for (int i = 0; i < 256; ++i) a_bits[i] = BF16(a[i]);
  for (int k = 0; k < 16; ++k) {
    for (int n = 0; n < 8; ++n) b_bits[transposed ? k * 8 + n : n * 16 + k] = BF16(b[k * 8 + n]);
  }
  const DeviceArray<uint16_t> a_device(a_bits), b_device(b_bits);
  const DeviceArray<float> c(128);
  ASSERT_EQ(Launch(transposed ? Product<true> : Product<false>, 1, 32, 1024,
                   reinterpret_cast<const uint4*>(a_device.get()),
                   reinterpret_cast<const uint4*>(b_device.get()), c.get()),
            cudaSuccess);
  const std::vector<float> values = c.Read();
  for (int m = 0; m < 16; ++m) {
    for (int n = 0; n < 8; ++n) {
      double sum = 1;
      for (int k = 0; k < 16; ++k) {
        sum += static_cast<double>(FromBF16(a_bits[m * 16 + k])) * FromBF16(BF16(b[k * 8 + n]));
      }
      EXPECT_EQ(values[m * 8 + n], static_cast<float>(sum)) << m << ", " << n;
    }
  }
}

TEST(SimtTest, MatrixProduct) { CheckProduct(false); }
TEST(SimtTest, MatrixProductTransposedLoad) { CheckProduct(true); }

// Sums tiles that come in three stages ahead.
__global__ void Pipeline(const float4* in, float* out, int tiles) {
  const SharedPtr<uint4> stages = DynamicShared<uint4>(0);
  const int i = static_cast<int>(threadIdx.x), n = static_cast<int>(blockDim.x);
  for (int tile = 0; tile < 2; ++tile) {
    CopyAsync16(stages + (tile * n + i), in + tile * n + i, tile < tiles);
    CommitCopies();
  }
  float sum = 0;
  for (int tile = 0; tile < tiles; ++tile) {
    const int next = tile + 2;
    CopyAsync16(stages + (next % 3 * n + i), in + next * n + i, next < tiles);
    CommitCopies();
    WaitCopies<2>();
    __syncthreads();
    const float4 x = SharedCast<float4>(stages)[tile % 3 * n + (i + 1) % n];
    sum += x.x + x.y + x.z + x.w;
    __syncthreads();
  }
  out[i] = sum;
}

TEST(SimtTest, AsynchronousCopies) {
  std::vector<float> values(5 * 64 * 4);
  std::iota(values.begin(), values.end(), 0.0f);
  const DeviceArray<float> in(values), out(64);
  ASSERT_EQ(
      Launch(Pipeline, 1, 64, 3 * 64 * 16, reinterpret_cast<const float4*>(in.get()), out.get(), 5),
      cudaSuccess);
  const std::vector<float> sums = out.Read();
  for (int i = 0; i < 64; ++i) {
    float expected = 0;
    for (int tile = 0; tile < 5; ++tile) {
      for (int j = 0; j < 4; ++j) expected += values[(tile * 64 + (i + 1) % 64) * 4 + j];
    }
    EXPECT_EQ(sums[i], expected);
  }
}

__global__ void Order(int* next, int* out) {
  if (threadIdx.x == 0) out[atomicAdd(next, 1)] = static_cast<int>(blockIdx.x);
}

TEST(SimtTest, OrderOfBlocks) {
  const auto run = [] {
    const DeviceArray<int> next(std::vector<int>(1, 0)), out(3);
    EXPECT_EQ(Launch(Order, 3, 32, 0, next.get(), out.get()), cudaSuccess);
    return out.Read();
  };
  SetOrder(ovq::simt::Order::kAscending);
  EXPECT_THAT(run(), ElementsAre(0, 1, 2));
  SetOrder(ovq::simt::Order::kDescending);
  EXPECT_THAT(run(), ElementsAre(2, 1, 0));
  SetOrder(ovq::simt::Order::kAlternate);
  EXPECT_NE(run(), run());
}

// Waits for another thread through memory.
__global__ void Spin(volatile int* flag) {
  if (threadIdx.x == 0) {
    while (*flag != 1) __nanosleep(100);
  } else if (threadIdx.x == 40) {
    *flag = 1;
  }
}

TEST(SimtTest, SleepLetsOthersRun) {
  const DeviceArray<int> flag(std::vector<int>(1, 0));
  for (int i = 0; i < 2; ++i) EXPECT_EQ(Launch(Spin, 1, 64, 0, flag.get()), cudaSuccess);
}

__global__ void Bytes(uint32_t* out) {
  const SharedPtr<uint8_t> bytes = DynamicShared<uint8_t>(0);
  bytes[threadIdx.x] = static_cast<uint8_t>(threadIdx.x);
  __syncthreads();
  if (threadIdx.x < blockDim.x / 4) {
    const uint32_t word = SharedCast<uint32_t>(bytes)[threadIdx.x];
    out[threadIdx.x] = word;
  }
  __syncthreads();
  SharedPtr<uint8_t> p = bytes + threadIdx.x;
  *p |= 0x80;
  __syncthreads();
  if (threadIdx.x == 0) {
    const uint8_t last = p[blockDim.x - 1];
    out[0] = last;
  }
}

TEST(SimtTest, BytesOfSeveralThreadsInAWord) {
  const DeviceArray<uint32_t> out(16);
  ASSERT_EQ(Launch(Bytes, 2, 64, 64, out.get()), cudaSuccess);
  const std::vector<uint32_t> words = out.Read();
  EXPECT_EQ(words[0], 0xbfu);
  EXPECT_EQ(words[1], 0x07060504u);
}

TEST(SimtTest, Intrinsics) {
  double s, c;
  sincospi(0.5, &s, &c);
  EXPECT_EQ(s, 1);
  EXPECT_EQ(c, 0);
  sincospi(-1.25, &s, &c);
  EXPECT_NEAR(s, std::sqrt(0.5), 1e-15);
  EXPECT_NEAR(c, -std::sqrt(0.5), 1e-15);
  EXPECT_EQ(__brev(1), 0x80000000u);
  EXPECT_EQ(__clz(1), 31);
  EXPECT_EQ(__ffs(8), 4);
  EXPECT_EQ(__umulhi(0x80000000u, 6), 3u);
  EXPECT_EQ(__umul64hi(1ull << 63, 6), 3u);
  EXPECT_EQ(__byte_perm(0x33221100, 0x77665544, 0x7410), 0x77441100u);
  EXPECT_EQ(rsqrtf(4), 0.5f);
  EXPECT_EQ(min(3, 4u), 3u);
  EXPECT_EQ(max(3.0f, NAN), 3.0f);
  EXPECT_EQ(kernels::cuda::PackBF16(1.0f, -2.0f), 0xc0003f80u);
  EXPECT_EQ(kernels::cuda::PackBF16(1.00390625f, 1.01171875f), 0x3f823f80u);
  EXPECT_EQ(kernels::cuda::Exp2Approx(3), 8);
  EXPECT_EQ(kernels::cuda::Exp2Approx(-130), 0);
}

}  // namespace
}  // namespace ovq::simt
