// Session states in the GPU's memory: CUDA's virtual memory management. The driver's functions are
// found at run time, so that a program links without the driver and runs where there is none.
#include <cuda.h>

#include <algorithm>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <vector>

#include "base/check.h"
#include "kernels/common/cuda/cuda_device.h"
#include "kernels/common/device_cuda.h"
#include "kernels/common/state_memory.h"

namespace ovq {
namespace {

template <class Fn>
Fn* EntryPoint(const char* name) {
  constexpr unsigned kDriverVersion = 12000;  // whose signatures these are
  void* entry = nullptr;
  cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
  cuda::CheckCuda(
      cudaGetDriverEntryPointByVersion(name, &entry, kDriverVersion, cudaEnableDefault, &found));
  Check(found == cudaDriverEntryPointSuccess && entry != nullptr, name);
  return reinterpret_cast<Fn*>(entry);
}

struct Driver {
  decltype(cuMemGetAllocationGranularity)* granularity =
      EntryPoint<decltype(cuMemGetAllocationGranularity)>("cuMemGetAllocationGranularity");
  decltype(cuMemAddressReserve)* reserve =
      EntryPoint<decltype(cuMemAddressReserve)>("cuMemAddressReserve");
  decltype(cuMemAddressFree)* free = EntryPoint<decltype(cuMemAddressFree)>("cuMemAddressFree");
  decltype(cuMemCreate)* create = EntryPoint<decltype(cuMemCreate)>("cuMemCreate");
  decltype(cuMemRelease)* release = EntryPoint<decltype(cuMemRelease)>("cuMemRelease");
  decltype(cuMemMap)* map = EntryPoint<decltype(cuMemMap)>("cuMemMap");
  decltype(cuMemUnmap)* unmap = EntryPoint<decltype(cuMemUnmap)>("cuMemUnmap");
  decltype(cuMemSetAccess)* set_access = EntryPoint<decltype(cuMemSetAccess)>("cuMemSetAccess");
  decltype(cuGetErrorName)* error_name = EntryPoint<decltype(cuGetErrorName)>("cuGetErrorName");
};

const Driver& TheDriver() {
  static const Driver driver;
  return driver;
}

// As CheckCuda.
void CheckDriver(CUresult result, const char* what, int line = __builtin_LINE()) {
  if (result == CUDA_SUCCESS) return;
  const char* name = nullptr;
  if (TheDriver().error_name(result, &name) != CUDA_SUCCESS) name = "an unknown error";
  std::fprintf(stderr, "%s:%d: CUDA driver: %s: %s\n", __FILE__, line, what, name);
  std::abort();
}

CUdeviceptr Address(const std::byte* p) { return reinterpret_cast<CUdeviceptr>(p); }

CUmemAllocationProp MemoryOf(const CudaDevice& device) {
  CUmemAllocationProp properties = {};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  properties.location.id = device.ordinal;
  return properties;
}

// Neighbouring pages, committed together.
struct Run {
  size_t offset;  // of the first from the range's base
  std::vector<CUmemGenericAllocationHandle> pages;
};

}  // namespace

struct StatePages {
  CudaDevice& device;
  const CUmemAllocationProp memory;
  const size_t page_bytes;
  std::vector<CUmemGenericAllocationHandle> free;  // zeroed, mapped nowhere
  std::map<std::byte*, std::vector<Run>> ranges;   // by base
};

namespace cuda {

size_t StatePageBytes(CudaDevice& device) {
  const CUmemAllocationProp memory = MemoryOf(device);
  size_t bytes = 0;
  CheckDriver(TheDriver().granularity(&bytes, &memory, CU_MEM_ALLOC_GRANULARITY_MINIMUM),
              "granularity of memory");
  return bytes;
}

StatePages* OpenStatePages(CudaDevice& device) {
  return new StatePages{.device = device,
                        .memory = MemoryOf(device),
                        .page_bytes = StatePageBytes(device),
                        .free = {},
                        .ranges = {}};
}

void CloseStatePages(StatePages* pages) {
  BindThread(pages->device);  // the last owner may be another thread
  Check(pages->ranges.empty(), "every range of state memory is released");
  for (CUmemGenericAllocationHandle page : pages->free) {
    CheckDriver(TheDriver().release(page), "release of a page");
  }
  delete pages;
}

std::byte* ReserveRange(StatePages& pages, size_t bytes) {
  CUdeviceptr base = 0;
  if (TheDriver().reserve(&base, bytes, /*alignment=*/0, /*addr=*/0, /*flags=*/0) != CUDA_SUCCESS) {
    return nullptr;
  }
  auto* range = reinterpret_cast<std::byte*>(base);
  pages.ranges[range];
  return range;
}

namespace {

// n pages, those from the free ones zeroed and first; n_new at the end hold anything. False, and
// none, if the GPU has no more.
bool TakePages(StatePages& pages, size_t n, std::vector<CUmemGenericAllocationHandle>& taken,
               size_t& n_new) {
  const size_t n_free = std::min(n, pages.free.size());
  taken.assign(pages.free.end() - static_cast<std::ptrdiff_t>(n_free), pages.free.end());
  for (n_new = 0; taken.size() < n; ++n_new) {
    CUmemGenericAllocationHandle page = 0;
    const CUresult result = TheDriver().create(&page, pages.page_bytes, &pages.memory, /*flags=*/0);
    if (result == CUDA_ERROR_OUT_OF_MEMORY) {
      for (; n_new > 0; --n_new, taken.pop_back()) {
        CheckDriver(TheDriver().release(taken.back()), "release of a page");
      }
      return false;
    }
    CheckDriver(result, "a page of state memory");
    taken.push_back(page);
  }
  pages.free.resize(pages.free.size() - n_free);
  return true;
}

}  // namespace

bool CommitPages(StatePages& pages, std::byte* base, size_t offset, size_t bytes) {
  const size_t page_bytes = pages.page_bytes;
  std::vector<Run>& runs = pages.ranges.at(base);
  // What an earlier call has committed whose caller then had no memory for the rest.
  for (const Run& run : runs) {
    if (run.offset != offset || bytes == 0) continue;
    const size_t there = std::min(bytes, run.pages.size() * page_bytes);
    return CommitPages(pages, base, offset + there, bytes - there);
  }
  if (bytes == 0) return true;
  Run run{.offset = offset, .pages = {}};
  size_t n_new = 0;
  if (!TakePages(pages, bytes / page_bytes, run.pages, n_new)) return false;
  size_t at = offset;
  for (const CUmemGenericAllocationHandle page : run.pages) {
    CheckDriver(TheDriver().map(Address(base + at), page_bytes, /*offset=*/0, page, /*flags=*/0),
                "mapping of a page");
    at += page_bytes;
  }
  CUmemAccessDesc access = {};
  access.location = pages.memory.location;
  access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  CheckDriver(TheDriver().set_access(Address(base + offset), bytes, &access, 1),
              "access to state memory");
  if (n_new > 0) {
    const size_t new_bytes = n_new * page_bytes;
    CheckCuda(
        cudaMemsetAsync(base + offset + bytes - new_bytes, 0, new_bytes, pages.device.stream));
  }
  runs.push_back(std::move(run));
  return true;
}

void ReleaseRange(StatePages& pages, std::byte* base, size_t bytes) {
  const auto range = pages.ranges.find(base);
  Check(range != pages.ranges.end(), "a range of state memory is released once");
  for (const Run& run : range->second) {
    CheckCuda(cudaMemsetAsync(base + run.offset, 0, run.pages.size() * pages.page_bytes,
                              pages.device.stream));
  }
  // Nothing that runs may lose its memory, and a page is free once it is zeroed.
  if (!range->second.empty()) Synchronize(pages.device);
  for (const Run& run : range->second) {
    for (size_t i = 0; i < run.pages.size(); ++i) {
      CheckDriver(
          TheDriver().unmap(Address(base + run.offset + i * pages.page_bytes), pages.page_bytes),
          "unmapping of a page");
      pages.free.push_back(run.pages[i]);
    }
  }
  CheckDriver(TheDriver().free(Address(base), bytes), "release of an address range");
  pages.ranges.erase(range);
}

namespace {

constexpr int kPackThreads = 128;
// Of one launch: they are its arguments.
constexpr size_t kMostExtents = 64;

struct Extents {
  StateExtent list[kMostExtents];
  size_t packed_at[kMostExtents];
};

// Grid: extents. to_state: out of `packed`, else into it.
__global__ void __launch_bounds__(kPackThreads)
    CopyExtents(std::byte* base, Extents extents, std::byte* packed, bool to_state) {
  const StateExtent extent = extents.list[blockIdx.x];
  std::byte* const in_packed = packed + extents.packed_at[blockIdx.x];
  for (size_t i = threadIdx.x; i < extent.pieces * extent.bytes; i += kPackThreads) {
    std::byte* const in_state =
        base + extent.offset + i / extent.bytes * extent.stride + i % extent.bytes;
    if (to_state) {
      *in_state = in_packed[i];
    } else {
      in_packed[i] = *in_state;
    }
  }
}

void CopyAll(DeviceContext& context, std::byte* base, std::span<const StateExtent> extents,
             std::byte* packed, bool to_state) {
  size_t at = 0;
  while (!extents.empty()) {
    const size_t n = std::min(extents.size(), kMostExtents);
    Extents some = {};
    for (size_t i = 0; i < n; ++i) {
      some.list[i] = extents[i];
      some.packed_at[i] = at;
      at += extents[i].total_bytes();
    }
    Launch(context, CopyExtents, dim3(static_cast<unsigned>(n)), dim3(kPackThreads), 0, base, some,
           packed, to_state);
    extents = extents.subspan(n);
  }
}

}  // namespace

void PackExtents(DeviceContext& context, const std::byte* base,
                 std::span<const StateExtent> extents, std::byte* packed) {
  CopyAll(context, const_cast<std::byte*>(base), extents, packed, /*to_state=*/false);
}

void UnpackExtents(DeviceContext& context, std::byte* base, std::span<const StateExtent> extents,
                   const std::byte* packed) {
  CopyAll(context, base, extents, const_cast<std::byte*>(packed), /*to_state=*/true);
}

}  // namespace cuda
}  // namespace ovq
