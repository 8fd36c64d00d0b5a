// The device, as the runtime describes it, and the runtime's errors.
#include <cstring>
#include <utility>

#include "tests/simt/block.h"
#include "tests/simt/memory.h"
#include "tests/simt/runtime_api.h"
#include "tests/simt/simt.h"
#include "tests/simt/stream.h"

namespace ovq::simt {
namespace {

thread_local cudaError_t last_error = cudaSuccess;

constexpr int kMultiprocessors = 4;
constexpr int kL2Bytes = 4 << 20;

size_t max_shared_bytes = kMaxSharedBytes;

}  // namespace

cudaError_t Failed(cudaError_t error) { return last_error = error; }

void SetMaxSharedBytes(size_t bytes) { max_shared_bytes = bytes; }

}  // namespace ovq::simt

using namespace ovq::simt;

cudaError_t cudaGetLastError() { return std::exchange(last_error, cudaSuccess); }

cudaError_t cudaPeekAtLastError() { return last_error; }

const char* cudaGetErrorName(cudaError_t error) {
#define OVQ_NAME(name) \
  case name:           \
    return #name
  switch (error) {
    OVQ_NAME(cudaSuccess);
    OVQ_NAME(cudaErrorInvalidValue);
    OVQ_NAME(cudaErrorMemoryAllocation);
    OVQ_NAME(cudaErrorInvalidConfiguration);
    OVQ_NAME(cudaErrorInvalidDevicePointer);
    OVQ_NAME(cudaErrorInvalidMemcpyDirection);
    OVQ_NAME(cudaErrorNoDevice);
    OVQ_NAME(cudaErrorInvalidDevice);
    OVQ_NAME(cudaErrorInvalidResourceHandle);
    OVQ_NAME(cudaErrorSymbolNotFound);
    OVQ_NAME(cudaErrorNotReady);
    OVQ_NAME(cudaErrorIllegalAddress);
    OVQ_NAME(cudaErrorLaunchFailure);
    OVQ_NAME(cudaErrorNotSupported);
    OVQ_NAME(cudaErrorStreamCaptureUnsupported);
    OVQ_NAME(cudaErrorStreamCaptureInvalidated);
    OVQ_NAME(cudaErrorStreamCaptureUnmatched);
    OVQ_NAME(cudaErrorStreamCaptureIsolation);
    OVQ_NAME(cudaErrorStreamCaptureImplicit);
    OVQ_NAME(cudaErrorUnknown);
  }
#undef OVQ_NAME
  return "unrecognized error code";
}

const char* cudaGetErrorString(cudaError_t error) {
  return error == cudaSuccess ? "no error" : cudaGetErrorName(error);
}

cudaError_t cudaGetDeviceCount(int* count) {
  *count = 1;
  return cudaSuccess;
}

cudaError_t cudaSetDevice(int device) {
  return device == 0 ? cudaSuccess : Failed(cudaErrorInvalidDevice);
}

cudaError_t cudaGetDevice(int* device) {
  *device = 0;
  return cudaSuccess;
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
  if (device != 0) return Failed(cudaErrorInvalidDevice);
  *properties = {};
  std::strcpy(properties->name, "host executor");
  properties->totalGlobalMem = MemoryRegistry::Get().total();
  properties->sharedMemPerBlock = 48 << 10;
  properties->regsPerBlock = 64 << 10;
  properties->warpSize = 32;
  properties->maxThreadsPerBlock = kMaxThreads;
  properties->major = 9;
  properties->multiProcessorCount = kMultiprocessors;
  properties->l2CacheSize = kL2Bytes;
  properties->maxThreadsPerMultiProcessor = 2048;
  properties->sharedMemPerMultiprocessor = max_shared_bytes + 1024;
  properties->sharedMemPerBlockOptin = max_shared_bytes;
  properties->reservedSharedMemPerBlock = 1024;
  return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device) {
  cudaDeviceProp properties;
  if (const cudaError_t error = cudaGetDeviceProperties(&properties, device);
      error != cudaSuccess) {
    return error;
  }
  switch (attribute) {
    case cudaDevAttrMaxThreadsPerBlock:
      *value = properties.maxThreadsPerBlock;
      return cudaSuccess;
    case cudaDevAttrMaxSharedMemoryPerBlock:
      *value = static_cast<int>(properties.sharedMemPerBlock);
      return cudaSuccess;
    case cudaDevAttrWarpSize:
      *value = properties.warpSize;
      return cudaSuccess;
    case cudaDevAttrMultiProcessorCount:
      *value = properties.multiProcessorCount;
      return cudaSuccess;
    case cudaDevAttrL2CacheSize:
      *value = properties.l2CacheSize;
      return cudaSuccess;
    case cudaDevAttrComputeCapabilityMajor:
      *value = properties.major;
      return cudaSuccess;
    case cudaDevAttrComputeCapabilityMinor:
      *value = properties.minor;
      return cudaSuccess;
    case cudaDevAttrMaxSharedMemoryPerMultiprocessor:
      *value = static_cast<int>(properties.sharedMemPerMultiprocessor);
      return cudaSuccess;
    case cudaDevAttrReservedSharedMemoryPerBlock:
      *value = static_cast<int>(properties.reservedSharedMemPerBlock);
      return cudaSuccess;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin:
      *value = static_cast<int>(properties.sharedMemPerBlockOptin);
      return cudaSuccess;
  }
  return Failed(cudaErrorInvalidValue);
}

cudaError_t cudaMemGetInfo(size_t* free, size_t* total) {
  *free = MemoryRegistry::Get().available();
  *total = MemoryRegistry::Get().total();
  return cudaSuccess;
}

cudaError_t cudaDriverGetVersion(int* version) {
  *version = CUDART_VERSION;
  return cudaSuccess;
}

cudaError_t cudaRuntimeGetVersion(int* version) { return cudaDriverGetVersion(version); }
