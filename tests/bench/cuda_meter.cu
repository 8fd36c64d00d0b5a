#include <cublas_v2.h>
#include <cuda_profiler_api.h>
#include <dlfcn.h>

#include <algorithm>
#include <functional>
#include <random>
#include <vector>

#include "kernels/common/cuda/cuda_device.h"
#include "kernels/common/tensor.h"
#include "tests/bench/cuda_meter.h"

namespace ovq::bench {
namespace {

using kernels::cuda::CheckCuda;

constexpr size_t kTileBytes = size_t{4} << 20;
constexpr size_t kCopyBytes = size_t{2} << 30;
constexpr int kReadThreads = 512;
constexpr int kReadBlocks = 8;  // per multiprocessor
constexpr int kMatmulSize = 8192;
constexpr int kWarmUp = 3;
constexpr int kRepeats = 21;

// A buffer of random bfloat16 values: one tile, repeated.
kernels::Buffer RandomBuffer(kernels::DeviceContext& context, size_t bytes) {
  std::mt19937 random(7);
  std::normal_distribution<float> normal;
  std::vector<kernels::BF16> tile(kTileBytes / sizeof(kernels::BF16));
  for (kernels::BF16& value : tile) value = kernels::RoundToBF16(normal(random));
  const kernels::Buffer source = context.Upload(tile.data(), kTileBytes);
  kernels::Buffer buffer(kernels::Device::kCuda, bytes);
  for (size_t at = 0; at < bytes; at += kTileBytes) {
    CheckCuda(cudaMemcpyAsync(buffer.as<std::byte>() + at, source.as<void>(),
                              std::min(kTileBytes, bytes - at), cudaMemcpyDeviceToDevice,
                              kernels::cuda::Stream(context)));
  }
  context.Synchronize();
  return buffer;
}

double MedianSeconds(kernels::DeviceContext& context, const std::function<void()>& fn) {
  Meter meter(context);
  std::vector<double> seconds;
  for (int i = 0; i < kWarmUp + kRepeats; ++i) {
    meter.Start();
    fn();
    const double took = meter.Stop();
    if (i >= kWarmUp) seconds.push_back(took);
  }
  std::sort(seconds.begin(), seconds.end());
  return seconds[seconds.size() / 2];
}

double CopyBandwidth(kernels::DeviceContext& context) {
  const kernels::Buffer from = RandomBuffer(context, kCopyBytes);
  const kernels::Buffer to(kernels::Device::kCuda, kCopyBytes);
  const double seconds = MedianSeconds(context, [&] {
    CheckCuda(cudaMemcpyAsync(to.as<void>(), from.as<void>(), kCopyBytes, cudaMemcpyDeviceToDevice,
                              kernels::cuda::Stream(context)));
  });
  return 2.0 * static_cast<double>(kCopyBytes) / seconds;
}

// Writes only if the bits have one very unlikely value, so that the compiler must keep every read.
__global__ void __launch_bounds__(kReadThreads)
    ReadAll(const uint4* from, size_t n, unsigned* sink) {
  unsigned bits = 0;
  const size_t step = size_t{gridDim.x} * kReadThreads;
#pragma unroll 4
  for (size_t i = size_t{blockIdx.x} * kReadThreads + threadIdx.x; i < n; i += step) {
    const uint4 x = from[i];
    bits ^= x.x ^ x.y ^ x.z ^ x.w;
  }
  if (bits == 0x9e3779b9u) atomicAdd(sink, 1u);
}

double ReadBandwidth(kernels::DeviceContext& context) {
  const kernels::Buffer from = RandomBuffer(context, kCopyBytes);
  const kernels::Buffer sink(kernels::Device::kCuda, sizeof(unsigned));
  const auto blocks = static_cast<unsigned>(kReadBlocks * context.cuda().n_multiprocessors);
  const double seconds = MedianSeconds(context, [&] {
    kernels::cuda::Launch(context, ReadAll, dim3(blocks), dim3(kReadThreads), 0,
                          from.as<const uint4>(), kCopyBytes / sizeof(uint4), sink.as<unsigned>());
  });
  return static_cast<double>(kCopyBytes) / seconds;
}

// cublasGemmEx is overloaded, so decltype cannot name its type.
using GemmEx = cublasStatus_t (*)(cublasHandle_t, cublasOperation_t, cublasOperation_t, int, int,
                                  int, const void*, const void*, cudaDataType, int, const void*,
                                  cudaDataType, int, const void*, void*, cudaDataType, int,
                                  cublasComputeType_t, cublasGemmAlgo_t);

// cuBLAS is loaded only when needed: nothing else in the project uses it.
struct Cublas {
  decltype(&cublasCreate_v2) create = nullptr;
  decltype(&cublasSetStream_v2) set_stream = nullptr;
  GemmEx gemm = nullptr;
  decltype(&cublasDestroy_v2) destroy = nullptr;

  std::string Load() {  // returns an empty text, or what is missing
    void* library = dlopen("libcublas.so.13", RTLD_NOW);
    if (library == nullptr) library = dlopen("libcublas.so", RTLD_NOW);
    if (library == nullptr) return dlerror();
    create = reinterpret_cast<decltype(create)>(dlsym(library, "cublasCreate_v2"));
    set_stream = reinterpret_cast<decltype(set_stream)>(dlsym(library, "cublasSetStream_v2"));
    gemm = reinterpret_cast<GemmEx>(dlsym(library, "cublasGemmEx"));
    destroy = reinterpret_cast<decltype(destroy)>(dlsym(library, "cublasDestroy_v2"));
    const bool whole =
        create != nullptr && set_stream != nullptr && gemm != nullptr && destroy != nullptr;
    return whole ? "" : "libcublas lacks a function";
  }
};

void MatmulRate(kernels::DeviceContext& context, Ceilings& ceilings) {
  Cublas cublas;
  ceilings.note = cublas.Load();
  if (!ceilings.note.empty()) return;
  constexpr int kN = kMatmulSize;
  constexpr size_t kBytes = size_t{kN} * kN * sizeof(kernels::BF16);
  const kernels::Buffer a = RandomBuffer(context, kBytes), b = RandomBuffer(context, kBytes);
  const kernels::Buffer c(kernels::Device::kCuda, kBytes);
  const float one = 1, zero = 0;
  cublasHandle_t handle = nullptr;
  bool fine = cublas.create(&handle) == CUBLAS_STATUS_SUCCESS &&
              cublas.set_stream(handle, kernels::cuda::Stream(context)) == CUBLAS_STATUS_SUCCESS;
  const double seconds = MedianSeconds(context, [&] {
    fine = fine && cublas.gemm(handle, CUBLAS_OP_T, CUBLAS_OP_N, kN, kN, kN, &one, a.as<void>(),
                               CUDA_R_16BF, kN, b.as<void>(), CUDA_R_16BF, kN, &zero, c.as<void>(),
                               CUDA_R_16BF, kN, CUBLAS_COMPUTE_32F,
                               CUBLAS_GEMM_DEFAULT) == CUBLAS_STATUS_SUCCESS;
  });
  if (handle != nullptr) cublas.destroy(handle);
  if (fine) {
    ceilings.matmul_flops_per_s = 2.0 * kN * kN * kN / seconds;
  } else {
    ceilings.note = "a call of cuBLAS failed";
  }
}

}  // namespace

GpuFacts DescribeGpu() {
  GpuFacts facts;
  cudaDeviceProp properties;
  CheckCuda(cudaGetDeviceProperties(&properties, 0));
  CheckCuda(cudaDriverGetVersion(&facts.driver_version));
  CheckCuda(cudaRuntimeGetVersion(&facts.runtime_version));
  facts.name = properties.name;
  facts.memory_bytes = properties.totalGlobalMem;
  facts.l2_bytes = static_cast<size_t>(properties.l2CacheSize);
  facts.n_multiprocessors = properties.multiProcessorCount;
  return facts;
}

struct Meter::State {
  kernels::DeviceContext& context;
  cudaEvent_t begin = nullptr;
  cudaEvent_t end = nullptr;
};

Meter::Meter(kernels::DeviceContext& context) : state_(new State{context}) {
  CheckCuda(cudaEventCreate(&state_->begin));
  CheckCuda(cudaEventCreate(&state_->end));
}

Meter::~Meter() {
  CheckCuda(cudaEventDestroy(state_->begin));
  CheckCuda(cudaEventDestroy(state_->end));
}

void Meter::Start() {
  CheckCuda(cudaEventRecord(state_->begin, kernels::cuda::Stream(state_->context)));
}

double Meter::Stop() {
  CheckCuda(cudaEventRecord(state_->end, kernels::cuda::Stream(state_->context)));
  CheckCuda(cudaEventSynchronize(state_->end));
  float milliseconds = 0;
  CheckCuda(cudaEventElapsedTime(&milliseconds, state_->begin, state_->end));
  return milliseconds * 1e-3;
}

void StartProfiler() { CheckCuda(cudaProfilerStart()); }
void StopProfiler() { CheckCuda(cudaProfilerStop()); }

Ceilings MeasureCeilings(kernels::DeviceContext& context) {
  Ceilings ceilings;
  ceilings.copy_bytes_per_s = CopyBandwidth(context);
  ceilings.read_bytes_per_s = ReadBandwidth(context);
  MatmulRate(context, ceilings);
  return ceilings;
}

}  // namespace ovq::bench
