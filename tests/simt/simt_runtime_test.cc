// Tests of the runtime's and the driver's functions.
#include <cuda.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>

#include "tests/simt/launch_util.h"
#include "tests/simt/simt.h"

namespace ovq::simt {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

__global__ void Add(const int* in, int* out, int value) {
  out[threadIdx.x] = in[threadIdx.x] + value;
}

TEST(RuntimeTest, LaunchLimits) {
  const DeviceArray<int> in(std::vector<int>(32, 1)), out(32);
  const auto launch = [&](dim3 grid, dim3 block, size_t shared_bytes) {
    return Launch(Add, grid, block, shared_bytes, in.get(), out.get(), 1);
  };
  EXPECT_EQ(launch(1, 32, 48 << 10), cudaSuccess);
  EXPECT_EQ(launch(1, 32, (48 << 10) + 1), cudaErrorInvalidValue);
  EXPECT_EQ(cudaFuncSetAttribute(Add, cudaFuncAttributeMaxDynamicSharedMemorySize, 227 << 10),
            cudaSuccess);
  EXPECT_EQ(launch(1, 32, 227 << 10), cudaSuccess);
  EXPECT_EQ(launch(1, 32, (227 << 10) + 1), cudaErrorInvalidValue);
  EXPECT_EQ(cudaFuncSetAttribute(Add, cudaFuncAttributeMaxDynamicSharedMemorySize, 228 << 10),
            cudaErrorInvalidValue);
  EXPECT_EQ(launch(0, 32, 0), cudaErrorInvalidConfiguration);
  EXPECT_EQ(launch(dim3(1, 65536), 32, 0), cudaErrorInvalidConfiguration);
  EXPECT_EQ(launch(1, 1025, 0), cudaErrorInvalidConfiguration);
  EXPECT_EQ(cudaPeekAtLastError(), cudaErrorInvalidConfiguration);
  EXPECT_EQ(cudaGetLastError(), cudaErrorInvalidConfiguration);
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);
}

TEST(RuntimeTest, Copies) {
  const CollectErrors collect;
  int host[8] = {1, 2, 3, 4, 5, 6, 7, 8};
  int *device, *pinned;
  ASSERT_EQ(cudaMalloc(&device, sizeof(host)), cudaSuccess);
  ASSERT_EQ(cudaMallocHost(&pinned, sizeof(host)), cudaSuccess);
  EXPECT_EQ(device[0], -1);
  EXPECT_EQ(cudaMemcpy(device, host, sizeof(host), cudaMemcpyHostToDevice), cudaSuccess);
  EXPECT_EQ(cudaMemcpy(pinned, device, sizeof(host), cudaMemcpyDeviceToHost), cudaSuccess);
  EXPECT_EQ(pinned[7], 8);
  EXPECT_EQ(cudaMemset(device, 0, 4), cudaSuccess);
  EXPECT_EQ(device[0], 0);
  EXPECT_THAT(DrainErrors(), testing::IsEmpty());

  EXPECT_EQ(cudaMemcpy(device, host, sizeof(host), cudaMemcpyDeviceToHost),
            cudaErrorInvalidMemcpyDirection);
  EXPECT_EQ(cudaMemcpy(device, pinned, sizeof(host), cudaMemcpyDeviceToDevice),
            cudaErrorInvalidMemcpyDirection);
  EXPECT_EQ(cudaMemcpy(device + 1, host, sizeof(host), cudaMemcpyHostToDevice),
            cudaErrorInvalidValue);
  EXPECT_EQ(cudaMemset(host, 0, 4), cudaErrorInvalidValue);
  EXPECT_EQ(cudaFree(pinned), cudaErrorInvalidValue);
  EXPECT_EQ(cudaFree(device), cudaSuccess);
  EXPECT_EQ(cudaFree(device), cudaErrorInvalidValue);
  EXPECT_EQ(cudaFreeHost(pinned), cudaSuccess);
  EXPECT_EQ(DrainErrors().size(), 6u);
}

TEST(RuntimeTest, DeferredWorkRunsWhenTheHostWaits) {
  const DeviceArray<int> in(std::vector<int>(32, 1)), out(32);
  cudaStream_t stream;
  cudaEvent_t launched;
  int *sent, *got;
  ASSERT_EQ(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
  ASSERT_EQ(cudaEventCreateWithFlags(&launched, cudaEventDisableTiming), cudaSuccess);
  ASSERT_EQ(cudaMallocHost(&sent, 4), cudaSuccess);
  ASSERT_EQ(cudaMallocHost(&got, 4), cudaSuccess);
  {
    const DeferWork deferred;
    sent[0] = 5;
    EXPECT_EQ(cudaMemcpyAsync(in.get(), sent, 4, cudaMemcpyHostToDevice, stream), cudaSuccess);
    sent[0] = 7;  // too early
    cudaLaunchConfig_t config = {};
    config.blockDim = 32;
    config.stream = stream;
    EXPECT_EQ(cudaLaunchKernelEx(&config, Add, in.get(), out.get(), 10), cudaSuccess);
    EXPECT_EQ(cudaEventRecord(launched, stream), cudaSuccess);
    EXPECT_EQ(cudaMemcpyAsync(got, out.get(), 4, cudaMemcpyDeviceToHost, stream), cudaSuccess);
    EXPECT_EQ(out.get()[1], -1);
    EXPECT_EQ(cudaEventSynchronize(launched), cudaSuccess);
    EXPECT_EQ(out.get()[1], 11);
    EXPECT_EQ(got[0], -1);
    EXPECT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
    EXPECT_EQ(got[0], 17);
    EXPECT_EQ(cudaMemsetAsync(out.get(), 0, 4, stream), cudaSuccess);
    EXPECT_EQ(out.get()[0], 17);
  }
  EXPECT_EQ(out.get()[0], 0);
  cudaFreeHost(sent);
  cudaFreeHost(got);
  cudaEventDestroy(launched);
  cudaStreamDestroy(stream);
}

TEST(RuntimeTest, DeviceMemoryIsLimited) {
  SetDeviceMemory(size_t{16} << 20);
  void *first, *second;
  EXPECT_EQ(cudaMalloc(&first, 12 << 20), cudaSuccess);
  EXPECT_EQ(cudaMalloc(&second, 8 << 20), cudaErrorMemoryAllocation);
  size_t free, total;
  EXPECT_EQ(cudaMemGetInfo(&free, &total), cudaSuccess);
  EXPECT_EQ(free, size_t{4} << 20);
  EXPECT_EQ(cudaFree(first), cudaSuccess);
  SetDeviceMemory(size_t{8} << 30);
  EXPECT_EQ(cudaGetLastError(), cudaErrorMemoryAllocation);
}

TEST(RuntimeTest, GraphsReplay) {
  const DeviceArray<int> in(std::vector<int>(32, 1)), middle(32), out(32);
  cudaStream_t stream, side;
  cudaEvent_t fork, join;
  ASSERT_EQ(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
  ASSERT_EQ(cudaStreamCreateWithFlags(&side, cudaStreamNonBlocking), cudaSuccess);
  ASSERT_EQ(cudaEventCreateWithFlags(&fork, cudaEventDisableTiming), cudaSuccess);
  ASSERT_EQ(cudaEventCreateWithFlags(&join, cudaEventDisableTiming), cudaSuccess);
  ASSERT_EQ(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), cudaSuccess);
  cudaLaunchConfig_t config = {};
  config.blockDim = 32;
  config.stream = stream;
  EXPECT_EQ(cudaLaunchKernelEx(&config, Add, in.get(), middle.get(), 10), cudaSuccess);
  EXPECT_EQ(cudaEventRecord(fork, stream), cudaSuccess);
  EXPECT_EQ(cudaStreamWaitEvent(side, fork), cudaSuccess);
  config.stream = side;
  EXPECT_EQ(cudaLaunchKernelEx(&config, Add, middle.get(), out.get(), 100), cudaSuccess);
  EXPECT_EQ(cudaMemsetAsync(out.get(), 0, 4, side), cudaSuccess);
  EXPECT_EQ(cudaEventRecord(join, side), cudaSuccess);
  EXPECT_EQ(cudaStreamWaitEvent(stream, join), cudaSuccess);
  EXPECT_EQ(cudaMemcpyAsync(out.get() + 1, middle.get(), 4, cudaMemcpyDeviceToDevice, stream),
            cudaSuccess);
  cudaGraph_t graph;
  ASSERT_EQ(cudaStreamEndCapture(stream, &graph), cudaSuccess);
  EXPECT_EQ(out.Read()[2], -1);

  cudaGraphExec_t exec;
  ASSERT_EQ(cudaGraphInstantiate(&exec, graph, 0), cudaSuccess);
  ASSERT_EQ(cudaGraphDestroy(graph), cudaSuccess);
  for (const int value : {1, 5}) {
    cudaMemcpy(in.get(), std::vector<int>(32, value).data(), 128, cudaMemcpyHostToDevice);
    ASSERT_EQ(cudaGraphLaunch(exec, stream), cudaSuccess);
    const std::vector<int> values = out.Read();
    EXPECT_EQ(values[0], 0);
    EXPECT_EQ(values[1], 10 + value);
    EXPECT_EQ(values[2], 110 + value);
  }
  EXPECT_EQ(cudaGraphExecDestroy(exec), cudaSuccess);
  EXPECT_EQ(cudaGraphLaunch(exec, stream), cudaErrorInvalidValue);
  EXPECT_EQ(cudaEventDestroy(fork), cudaSuccess);
  EXPECT_EQ(cudaEventDestroy(join), cudaSuccess);
  EXPECT_EQ(cudaStreamDestroy(side), cudaSuccess);
  EXPECT_EQ(cudaStreamDestroy(stream), cudaSuccess);
  EXPECT_EQ(cudaStreamSynchronize(stream), cudaErrorInvalidResourceHandle);
  cudaGetLastError();
}

TEST(RuntimeTest, CaptureRefuses) {
  cudaStream_t stream;
  ASSERT_EQ(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
  void* p = nullptr;
  const auto spoils = [&](auto call) {
    cudaGraph_t graph;
    cudaStreamCaptureStatus status;
    EXPECT_EQ(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal), cudaSuccess);
    EXPECT_EQ(cudaStreamIsCapturing(stream, &status), cudaSuccess);
    EXPECT_EQ(status, cudaStreamCaptureStatusActive);
    EXPECT_EQ(call(), cudaErrorStreamCaptureUnsupported);
    EXPECT_EQ(cudaStreamIsCapturing(stream, &status), cudaSuccess);
    EXPECT_EQ(status, cudaStreamCaptureStatusInvalidated);
    EXPECT_EQ(cudaStreamEndCapture(stream, &graph), cudaErrorStreamCaptureInvalidated);
  };
  spoils([&] { return cudaMalloc(&p, 16); });
  spoils([&] { return cudaFree(p); });
  spoils([&] { return cudaStreamSynchronize(stream); });
  spoils([&] { return cudaDeviceSynchronize(); });
  EXPECT_EQ(cudaStreamDestroy(stream), cudaSuccess);
  EXPECT_EQ(cudaGetLastError(), cudaErrorStreamCaptureInvalidated);
}

TEST(RuntimeTest, EventsMeasure) {
  cudaEvent_t start, end;
  ASSERT_EQ(cudaEventCreate(&start), cudaSuccess);
  ASSERT_EQ(cudaEventCreate(&end), cudaSuccess);
  float milliseconds = -1;
  EXPECT_EQ(cudaEventElapsedTime(&milliseconds, start, end), cudaErrorInvalidResourceHandle);
  EXPECT_EQ(cudaEventRecord(start), cudaSuccess);
  EXPECT_EQ(cudaEventRecord(end), cudaSuccess);
  EXPECT_EQ(cudaEventSynchronize(end), cudaSuccess);
  EXPECT_EQ(cudaEventElapsedTime(&milliseconds, start, end), cudaSuccess);
  EXPECT_GE(milliseconds, 0);
  EXPECT_EQ(cudaEventDestroy(start), cudaSuccess);
  EXPECT_EQ(cudaEventDestroy(end), cudaSuccess);
  cudaGetLastError();
}

TEST(RuntimeTest, Device) {
  cudaDeviceProp properties;
  ASSERT_EQ(cudaGetDeviceProperties(&properties, 0), cudaSuccess);
  EXPECT_STREQ(properties.name, "host executor");
  int value;
  EXPECT_EQ(cudaDeviceGetAttribute(&value, cudaDevAttrMaxSharedMemoryPerBlockOptin, 0),
            cudaSuccess);
  EXPECT_EQ(value, 227 << 10);
  EXPECT_EQ(cudaSetDevice(1), cudaErrorInvalidDevice);
  EXPECT_STREQ(cudaGetErrorName(cudaGetLastError()), "cudaErrorInvalidDevice");
}

template <class F>
F* Driver(F&, const char* name) {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult status;
  EXPECT_EQ(cudaGetDriverEntryPointByVersion(name, &function, 12000, cudaEnableDefault, &status),
            cudaSuccess);
  EXPECT_EQ(status, cudaDriverEntryPointSuccess);
  return reinterpret_cast<F*>(function);
}
#define DRIVER(name) Driver(name, #name)

__global__ void Store(int* p, int value) { *p = value; }

TEST(RuntimeTest, VirtualMemory) {
  CUmemAllocationProp properties = {};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  size_t granularity;
  ASSERT_EQ(DRIVER(cuMemGetAllocationGranularity)(&granularity, &properties,
                                                  CU_MEM_ALLOC_GRANULARITY_MINIMUM),
            CUDA_SUCCESS);
  EXPECT_EQ(granularity, size_t{2} << 20);
  CUdeviceptr p;
  ASSERT_EQ(DRIVER(cuMemAddressReserve)(&p, 4 * granularity, 0, 0, 0), CUDA_SUCCESS);
  CUmemGenericAllocationHandle first, second;
  ASSERT_EQ(DRIVER(cuMemCreate)(&first, granularity, &properties, 0), CUDA_SUCCESS);
  ASSERT_EQ(DRIVER(cuMemCreate)(&second, granularity, &properties, 0), CUDA_SUCCESS);
  EXPECT_EQ(DRIVER(cuMemCreate)(&second, 100, &properties, 0), CUDA_ERROR_INVALID_VALUE);
  const auto map = DRIVER(cuMemMap);
  ASSERT_EQ(map(p, granularity, 0, first, 0), CUDA_SUCCESS);
  EXPECT_EQ(map(p, granularity, 0, second, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(map(p + 4 * granularity, granularity, 0, second, 0), CUDA_ERROR_INVALID_VALUE);
  ASSERT_EQ(map(p + granularity, granularity, 0, second, 0), CUDA_SUCCESS);
  auto* at = reinterpret_cast<int*>(p);
  EXPECT_DEATH(*const_cast<volatile int*>(at), "");
  const CUmemAccessDesc access = {{CU_MEM_LOCATION_TYPE_DEVICE, 0},
                                  CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  const auto allow = DRIVER(cuMemSetAccess);
  EXPECT_EQ(allow(p, 3 * granularity, &access, 1), CUDA_ERROR_INVALID_VALUE);
  ASSERT_EQ(allow(p, 2 * granularity, &access, 1), CUDA_SUCCESS);

  const size_t middle = granularity / sizeof(int);
  EXPECT_EQ(at[middle], -1);
  const std::vector<int> two = {11, 12};
  EXPECT_EQ(cudaMemcpy(at + middle - 1, two.data(), 8, cudaMemcpyHostToDevice), cudaSuccess);
  EXPECT_EQ(Launch(Store, 1, 1, 0, at, 10), cudaSuccess);

  // The first one moves to another address with its contents.
  const auto unmap = DRIVER(cuMemUnmap);
  ASSERT_EQ(unmap(p, granularity), CUDA_SUCCESS);
  EXPECT_DEATH(Launch(Store, 1, 1, 0, at + middle - 1, 10), "");
  ASSERT_EQ(map(p + 3 * granularity, granularity, 0, first, 0), CUDA_SUCCESS);
  ASSERT_EQ(allow(p + 3 * granularity, granularity, &access, 1), CUDA_SUCCESS);
  EXPECT_EQ(at[3 * middle], 10);
  EXPECT_EQ(at[4 * middle - 1], 11);
  EXPECT_EQ(at[middle], 12);

  EXPECT_EQ(DRIVER(cuMemAddressFree)(p, 4 * granularity), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(DRIVER(cuMemRelease)(first), CUDA_SUCCESS);
  EXPECT_EQ(at[3 * middle], 10);
  EXPECT_EQ(unmap(p + 3 * granularity, granularity), CUDA_SUCCESS);
  EXPECT_EQ(unmap(p + granularity, granularity), CUDA_SUCCESS);
  EXPECT_EQ(DRIVER(cuMemRelease)(second), CUDA_SUCCESS);
  EXPECT_EQ(DRIVER(cuMemRelease)(second), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(DRIVER(cuMemAddressFree)(p, 4 * granularity), CUDA_SUCCESS);
}

}  // namespace
}  // namespace ovq::simt
