// The errors that the executor has to find, each in a kernel of its own.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kernels/common/cuda/ptx.cuh"
#include "tests/simt/launch_util.h"
#include "tests/simt/simt.h"

namespace ovq::simt {
namespace {

using kernels::cuda::CommitCopies;
using kernels::cuda::CopyAsync16;
using kernels::cuda::DynamicShared;
using kernels::cuda::SharedPtr;
using kernels::cuda::WaitCopies;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr unsigned kAll = 0xffffffff;

// The errors of a launch that has to fail.
template <class... P, class... A>
std::vector<std::string> Errors(void (*kernel)(P...), dim3 grid, dim3 block, size_t shared_bytes,
                                A... arguments) {
  const CollectErrors collect;
  EXPECT_EQ(Launch(kernel, grid, block, shared_bytes, arguments...), cudaErrorLaunchFailure);
  EXPECT_EQ(cudaGetLastError(), cudaErrorLaunchFailure);
  return DrainErrors();
}

// All variants of a kernel: the broken ones and the right one.
enum Variant { kRight, kBroken };

__global__ void OutOfBounds(unsigned index) {
  const SharedPtr<float> p = DynamicShared<float>(0);
  if (threadIdx.x == 3) p[index] = 1.0f;
}

TEST(DetectTest, OutOfBounds) {
  EXPECT_THAT(Errors(OutOfBounds, 1, 32, 64, 16u),
              ElementsAre(AllOf(HasSubstr("out of bounds"), HasSubstr("OutOfBounds"),
                                HasSubstr("offset 64"), HasSubstr("thread (3, 0, 0)"))));
  EXPECT_EQ(Launch(OutOfBounds, 1, 32, 64, 15u), cudaSuccess);
}

__global__ void Misaligned(unsigned offset) {
  const SharedPtr<float4> p = DynamicShared<float4>(offset);
  if (threadIdx.x == 0) *p = make_float4(1, 2, 3, 4);
}

TEST(DetectTest, Misaligned) {
  EXPECT_THAT(Errors(Misaligned, 1, 32, 64, 8u), ElementsAre(HasSubstr("misaligned")));
  EXPECT_EQ(Launch(Misaligned, 1, 32, 64, 16u), cudaSuccess);
}

__global__ void Uninitialised(float* out, Variant variant) {
  const SharedPtr<float2> p = DynamicShared<float2>(0);
  const SharedPtr<float> halves = kernels::cuda::SharedCast<float>(p);
  halves[2 * threadIdx.x] = 1;
  if (variant == kRight || threadIdx.x != 5) halves[2 * threadIdx.x + 1] = 2;
  const float2 x = p[threadIdx.x];
  out[threadIdx.x] = x.x + x.y;
}

TEST(DetectTest, UninitialisedRead) {
  const DeviceArray<float> out(32);
  // Bytes that an earlier launch or block wrote do not count as written.
  EXPECT_EQ(Launch(Uninitialised, 1, 32, 256, out.get(), kRight), cudaSuccess);
  EXPECT_THAT(Errors(Uninitialised, 1, 32, 256, out.get(), kBroken),
              ElementsAre(AllOf(HasSubstr("uninitialised"), HasSubstr("thread (5, 0, 0)"),
                                HasSubstr("(byte 44)"))));
}

__global__ void ReadOthers(float* out, Variant variant) {
  const SharedPtr<float> p = DynamicShared<float>(0);
  p[threadIdx.x] = static_cast<float>(threadIdx.x);
  if (variant == kRight) __syncthreads();
  const float x = p[(threadIdx.x + 32) % blockDim.x];
  out[threadIdx.x] = x;
}

TEST(DetectTest, RaceWithoutBlockBarrier) {
  const DeviceArray<float> out(64);
  EXPECT_EQ(Launch(ReadOthers, 3, 64, 256, out.get(), kRight), cudaSuccess);
  for (const Order order : {Order::kAscending, Order::kDescending}) {
    SetOrder(order);
    // The warp that runs first reads bytes that the other has not written yet.
    EXPECT_THAT(Errors(ReadOthers, 1, 64, 256, out.get(), kBroken),
                ElementsAre(HasSubstr("uninitialised")));
  }
  SetOrder(Order::kAlternate);
}

// Everything is initialised; the second write races with the reads before it.
__global__ void WriteAfterRead(float* out, Variant variant) {
  const SharedPtr<float> p = DynamicShared<float>(0);
  p[threadIdx.x] = 1;
  __syncthreads();
  const float x = p[(threadIdx.x + 32) % blockDim.x];
  if (variant == kRight) __syncthreads();
  p[threadIdx.x] = x + 1;
  out[threadIdx.x] = x;
}

TEST(DetectTest, RaceOfWriteAfterRead) {
  const DeviceArray<float> out(64);
  EXPECT_EQ(Launch(WriteAfterRead, 2, 64, 256, out.get(), kRight), cudaSuccess);
  for (const Order order : {Order::kAscending, Order::kDescending}) {
    SetOrder(order);
    EXPECT_THAT(Errors(WriteAfterRead, 1, 64, 256, out.get(), kBroken),
                ElementsAre(HasSubstr("race")));
  }
  SetOrder(Order::kAlternate);
}

__global__ void WriteTwice(Variant variant) {
  const SharedPtr<int> p = DynamicShared<int>(0);
  if (variant == kBroken || threadIdx.x == 0) p[0] = 1;
}

TEST(DetectTest, RaceOfWrites) {
  EXPECT_EQ(Launch(WriteTwice, 1, 64, 16, kRight), cudaSuccess);
  EXPECT_THAT(Errors(WriteTwice, 1, 64, 16, kBroken), ElementsAre(HasSubstr("race")));
}

enum class Sync { kWarp, kShuffle, kQuad, kNone };

__global__ void ReadNeighbour(float* out, Sync sync) {
  const SharedPtr<float> p = DynamicShared<float>(0);
  p[threadIdx.x] = 1;
  __syncthreads();
  const unsigned quad = 15u << (threadIdx.x % 32 / 4 * 4);
  for (int i = 0; i < 2; ++i) {
    p[threadIdx.x] = 2;
    if (sync == Sync::kWarp) __syncwarp();
    if (sync == Sync::kQuad) __syncwarp(quad);
    if (sync == Sync::kShuffle) __shfl_sync(kAll, 1, 0);
    const float x = p[threadIdx.x ^ 1];
    out[threadIdx.x] = x;
    if (sync != Sync::kQuad) __syncwarp();
    if (sync == Sync::kQuad) __syncwarp(quad);
  }
}

TEST(DetectTest, RaceWithinAWarp) {
  const DeviceArray<float> out(64);
  EXPECT_EQ(Launch(ReadNeighbour, 1, 64, 256, out.get(), Sync::kWarp), cudaSuccess);
  EXPECT_EQ(Launch(ReadNeighbour, 1, 64, 256, out.get(), Sync::kQuad), cudaSuccess);
  EXPECT_THAT(Errors(ReadNeighbour, 1, 64, 256, out.get(), Sync::kNone),
              ElementsAre(HasSubstr("race")));
  // A shuffle makes lanes meet and orders no memory.
  EXPECT_THAT(Errors(ReadNeighbour, 1, 64, 256, out.get(), Sync::kShuffle),
              ElementsAre(HasSubstr("race")));
}

__global__ void CountRacing(Variant variant) {
  const SharedPtr<unsigned> count = DynamicShared<unsigned>(0);
  if (threadIdx.x == 0) count[0] = 0;
  __syncthreads();
  if (variant == kRight || threadIdx.x != 7) atomicAdd(count, 1u);
  if (variant == kBroken && threadIdx.x == 7) count[0] += 1;
}

TEST(DetectTest, RaceOfAtomicAndPlain) {
  EXPECT_EQ(Launch(CountRacing, 1, 64, 16, kRight), cudaSuccess);
  EXPECT_THAT(Errors(CountRacing, 1, 64, 16, kBroken), ElementsAre(HasSubstr("race")));
}

enum class CopyError { kNone, kNoWait, kNoCommit, kNoBarrier, kWriteBefore };

__global__ void CopyAndRead(const uint4* in, uint4* out, CopyError error) {
  const SharedPtr<uint4> p = DynamicShared<uint4>(0);
  CopyAsync16(p + threadIdx.x, in + threadIdx.x, true);
  if (error == CopyError::kWriteBefore) p[threadIdx.x] = make_uint4(0, 0, 0, 0);
  if (error != CopyError::kNoCommit) CommitCopies();
  if (error != CopyError::kNoWait) WaitCopies<0>();
  if (error != CopyError::kNoBarrier) __syncthreads();
  const uint4 x = p[(threadIdx.x + 1) % blockDim.x];
  out[threadIdx.x] = x;
}

TEST(DetectTest, AsynchronousCopies) {
  const DeviceArray<uint4> in(32), out(32);
  const auto errors = [&](CopyError error) {
    return Errors(CopyAndRead, 1, 32, 512, in.get(), out.get(), error);
  };
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(Launch(CopyAndRead, 2, 32, 512, in.get(), out.get(), CopyError::kNone), cudaSuccess);
    EXPECT_THAT(errors(CopyError::kNoWait), ElementsAre(HasSubstr("unfinished copy")));
    EXPECT_THAT(errors(CopyError::kNoCommit), ElementsAre(HasSubstr("unfinished copy")));
    EXPECT_THAT(errors(CopyError::kWriteBefore), ElementsAre(HasSubstr("unfinished copy")));
    EXPECT_THAT(errors(CopyError::kNoBarrier),
                ElementsAre(::testing::AnyOf(HasSubstr("race"), HasSubstr("uninit"))));
  }
}

__global__ void WaitThenWrite(int* out, Variant variant) {
  if (variant == kRight || threadIdx.x != 5) kernels::cuda::WaitForKernelsBefore();
  out[threadIdx.x] = 1;
}

TEST(DetectTest, KernelsLaunchedEarlyWaitForThoseBefore) {
  const DeviceArray<int> out(32);
  cudaLaunchAttribute early = {};
  early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  early.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config = {};
  config.blockDim = 32;
  EXPECT_EQ(cudaLaunchKernelEx(&config, WaitThenWrite, out.get(), kBroken), cudaSuccess);
  config.attrs = &early;
  config.numAttrs = 1;
  EXPECT_EQ(cudaLaunchKernelEx(&config, WaitThenWrite, out.get(), kRight), cudaSuccess);
  const CollectErrors collect;
  EXPECT_EQ(cudaLaunchKernelEx(&config, WaitThenWrite, out.get(), kBroken), cudaErrorLaunchFailure);
  EXPECT_EQ(cudaGetLastError(), cudaErrorLaunchFailure);
  EXPECT_THAT(DrainErrors(), ElementsAre(HasSubstr("without waiting")));
}

__global__ void LoadRows(uint32_t* out, Variant variant) {
  const SharedPtr<uint4> p = DynamicShared<uint4>(0);
  p[threadIdx.x] = make_uint4(1, 2, 3, 4);
  if (variant == kRight) __syncwarp();
  uint32_t r[4];
  kernels::cuda::LoadMatrices(r, p + threadIdx.x);
  out[threadIdx.x] = r[0];
}

TEST(DetectTest, MatrixLoadOfRowsJustWritten) {
  const DeviceArray<uint32_t> out(32);
  EXPECT_EQ(Launch(LoadRows, 1, 32, 512, out.get(), kRight), cudaSuccess);
  EXPECT_THAT(Errors(LoadRows, 1, 32, 512, out.get(), kBroken), ElementsAre(HasSubstr("race")));
}

enum class Divergence { kExit, kBranch, kLane, kMask, kExitedLane };

__global__ void Diverge(Divergence how) {
  if (how == Divergence::kExit && threadIdx.x >= 32) return;
  if (how == Divergence::kExitedLane && threadIdx.x == 9) return;
  if (how == Divergence::kBranch && threadIdx.x < 32) {
    __syncthreads();
  } else if (how == Divergence::kBranch || how == Divergence::kExit) {
    __syncthreads();
  }
  if (how == Divergence::kLane && threadIdx.x == 2) {
    __syncwarp();
  } else {
    __any_sync(how == Divergence::kMask ? 0xffff0000 : kAll, 1);
  }
}

TEST(DetectTest, DivergentBarriers) {
  EXPECT_THAT(Errors(Diverge, 2, 64, 0, Divergence::kExit),
              ElementsAre(AllOf(HasSubstr("divergent barrier"), HasSubstr("Diverge"),
                                HasSubstr("threads 32-63 have exited"),
                                HasSubstr("threads 0-31 wait at __syncthreads"),
                                HasSubstr("simt_detect_test.cc:"))));
  EXPECT_THAT(Errors(Diverge, 1, 64, 0, Divergence::kBranch),
              ElementsAre(AllOf(HasSubstr("divergent barrier"), HasSubstr("threads 32-63 wait"))));
  EXPECT_THAT(Errors(Diverge, 1, 32, 0, Divergence::kLane),
              ElementsAre(AllOf(HasSubstr("threads 0-1, 3-31 wait at __any_sync(0xffffffff)"),
                                HasSubstr("threads 2 wait at __syncwarp(0xffffffff)"))));
  EXPECT_THAT(Errors(Diverge, 1, 32, 0, Divergence::kExitedLane),
              ElementsAre(AllOf(HasSubstr("threads 9 have exited"), HasSubstr("__any_sync"))));
  EXPECT_THAT(Errors(Diverge, 1, 32, 0, Divergence::kMask),
              ElementsAre(HasSubstr("not in the mask")));
}

__global__ void ReadAbsentLane(int* out) {
  if (threadIdx.x < 16) out[threadIdx.x] = __shfl_sync(0x0000ffff, 1, 20);
}

TEST(DetectTest, ShuffleFromALaneOutsideTheMask) {
  const DeviceArray<int> out(32);
  EXPECT_THAT(Errors(ReadAbsentLane, 1, 32, 0, out.get()), ElementsAre(HasSubstr("lane 20")));
}

__global__ void Fill(int* out, int n) {
  for (int i = static_cast<int>(threadIdx.x); i < n; i += static_cast<int>(blockDim.x)) out[i] = i;
}

TEST(DetectTest, GuardZones) {
#ifdef __SANITIZE_ADDRESS__
  const DeviceArray<int> out(100);
  EXPECT_DEATH(Launch(Fill, 1, 32, 0, out.get(), 101), "use-after-poison");
#else
  const CollectErrors collect;
  int* out;
  ASSERT_EQ(cudaMalloc(&out, 400), cudaSuccess);
  EXPECT_EQ(Launch(Fill, 1, 32, 0, out, 101), cudaSuccess);
  EXPECT_THAT(DrainErrors(), ElementsAre(HasSubstr("byte 400 of the allocation of 400 bytes")));
  EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  EXPECT_THAT(DrainErrors(), IsEmpty());
  out[-1] = 0;
  EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  EXPECT_THAT(DrainErrors(), ElementsAre(HasSubstr("byte -4 ")));
  out[100] = 0;
  EXPECT_EQ(cudaFree(out), cudaSuccess);
  EXPECT_THAT(DrainErrors(), ElementsAre(HasSubstr("guard zone damaged")));
#endif
}

TEST(DetectTest, HostPointers) {
  const CollectErrors collect;
  int here = 0;
  EXPECT_EQ(Launch(Fill, 1, 32, 0, &here, 1), cudaErrorIllegalAddress);
  EXPECT_THAT(DrainErrors(), ElementsAre(HasSubstr("no address of the device")));
}

// Not a tail call, which would need no stack.
__attribute__((noinline)) int Recurse(volatile int* out, int depth) {
  volatile char space[512];
  space[0] = static_cast<char>(depth);
  *out = depth;
  return depth == 0 ? space[0] : Recurse(out, depth - 1) + space[0];
}
__global__ void Overflow(int* out) { out[0] = Recurse(out, 1000000); }
__global__ void Dereference(int* const* p) { **p = 1; }

TEST(DetectDeathTest, FaultsNameTheKernel) {
  const DeviceArray<int> out(1);
  EXPECT_DEATH(Launch(Overflow, 1, 32, 0, out.get()), "Overflow.*stack overflow");
  // Nobody's memory; not null, which a sanitizer would see first.
  const DeviceArray<int*> wild(std::vector<int*>(1, reinterpret_cast<int*>(0x10000)));
  EXPECT_DEATH(Launch(Dereference, 1, 32, 0, wild.get()), "Dereference.*memory fault");
}

TEST(DetectDeathTest, ErrorsEndTheProcessUnlessWanted) {
  EXPECT_DEATH(Launch(OutOfBounds, 1, 32, 64, 16u), "SIMT error: .*OutOfBounds.*out of bounds");
}

}  // namespace
}  // namespace ovq::simt
