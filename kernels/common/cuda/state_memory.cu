// StateMemory on the GPU, with CUDA's virtual memory management. The driver's functions are found
// at run time, so that a program links without the driver and runs where there is none.
#include <cuda.h>

#include <algorithm>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <limits>
#include <map>
#include <vector>

#include "base/check.h"
#include "kernels/common/cuda/cuda_device.h"
#include "kernels/common/device_cuda.h"
#include "kernels/common/state_memory.h"

namespace ovq::kernels {
namespace {

template <class Fn>
Fn* EntryPoint(const char* name) {
  constexpr unsigned kDriverVersion = 12000;  // version of the signatures used here
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

// CheckCuda for the driver's results.
void CheckDriver(CUresult result, const char* what, int line = __builtin_LINE()) {
  if (result == CUDA_SUCCESS) return;
  const char* name = nullptr;
  if (TheDriver().error_name(result, &name) != CUDA_SUCCESS) name = "an unknown error";
  std::fprintf(stderr, "%s:%d: CUDA driver: %s: %s\n", __FILE__, line, what, name);
  std::abort();
}

CUdeviceptr Address(const std::byte* p) { return reinterpret_cast<CUdeviceptr>(p); }

CUmemAllocationProp PageProperties(const CudaDevice& device) {
  CUmemAllocationProp properties = {};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  properties.location.id = device.ordinal;
  return properties;
}

// Adjacent pages that were committed together.
struct Run {
  size_t offset;  // offset of the first page from the range's base
  std::vector<CUmemGenericAllocationHandle> pages;
};

}  // namespace

// A released range: its pages stay mapped until they are needed.
struct RetiredRange {
  std::byte* base;
  size_t bytes;
  std::vector<Run> runs;
  cudaEvent_t zeroed;  // after this event its pages are zeroed
};

struct StatePages {
  CudaDevice& device;
  const CUmemAllocationProp memory;
  const size_t page_bytes;
  cudaStream_t zeroing = nullptr;                  // runs beside the device's stream
  cudaEvent_t released = nullptr;                  // recorded anew at each release
  std::vector<CUmemGenericAllocationHandle> free;  // zeroed and unmapped
  std::map<std::byte*, std::vector<Run>> ranges;   // by base
  std::deque<RetiredRange> retired;                // oldest first
};

namespace cuda {

size_t StatePageBytes(CudaDevice& device) {
  const CUmemAllocationProp memory = PageProperties(device);
  size_t bytes = 0;
  CheckDriver(TheDriver().granularity(&bytes, &memory, CU_MEM_ALLOC_GRANULARITY_MINIMUM),
              "granularity of memory");
  return bytes;
}

StatePages* OpenStatePages(CudaDevice& device) {
  auto* pages = new StatePages{.device = device,
                               .memory = PageProperties(device),
                               .page_bytes = StatePageBytes(device),
                               .free = {},
                               .ranges = {},
                               .retired = {}};
  CheckCuda(cudaStreamCreateWithFlags(&pages->zeroing, cudaStreamNonBlocking));
  CheckCuda(cudaEventCreateWithFlags(&pages->released, cudaEventDisableTiming));
  return pages;
}

namespace {

void UnmapPage(StatePages& pages, std::byte* at) {
  CheckDriver(TheDriver().unmap(Address(at), pages.page_bytes), "unmapping of a page");
}

// Reclaims up to n pages of the range that was released first. A range without pages left is
// removed.
void Reclaim(StatePages& pages, size_t n) {
  RetiredRange& range = pages.retired.front();
  // Has usually passed long ago, unless the range was released just now.
  CheckCuda(cudaEventSynchronize(range.zeroed));
  for (; n > 0 && !range.runs.empty(); --n) {
    Run& run = range.runs.back();
    UnmapPage(pages, range.base + run.offset + (run.pages.size() - 1) * pages.page_bytes);
    pages.free.push_back(run.pages.back());
    run.pages.pop_back();
    if (run.pages.empty()) range.runs.pop_back();
  }
  if (!range.runs.empty()) return;
  CheckCuda(cudaEventDestroy(range.zeroed));
  CheckDriver(TheDriver().free(Address(range.base), range.bytes), "release of an address range");
  pages.retired.pop_front();
}

}  // namespace

void CloseStatePages(StatePages* pages) {
  BindThread(pages->device);  // the last owner may be on another thread
  Check(pages->ranges.empty(), "every range of state memory is released");
  while (!pages->retired.empty()) Reclaim(*pages, std::numeric_limits<size_t>::max());
  CheckCuda(cudaStreamDestroy(pages->zeroing));
  CheckCuda(cudaEventDestroy(pages->released));
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

// The pages of a Commit: first zeroed ones from the free list, then n_new with arbitrary contents.
struct AcquiredPages {
  std::vector<CUmemGenericAllocationHandle> list;
  size_t n_new = 0;
};

void ReturnPages(StatePages& pages, AcquiredPages& acquired) {
  for (; acquired.n_new > 0; --acquired.n_new, acquired.list.pop_back()) {
    CheckDriver(TheDriver().release(acquired.list.back()), "release of a page");
  }
  pages.free.insert(pages.free.end(), acquired.list.begin(), acquired.list.end());
}

// False, and no pages, if the GPU has none left. Released pages are used before new ones, so that
// never more is held than was in use at once.
bool AcquirePages(StatePages& pages, size_t n, AcquiredPages& acquired) {
  while (pages.free.size() < n && !pages.retired.empty()) Reclaim(pages, n - pages.free.size());
  const auto first = pages.free.end() - static_cast<std::ptrdiff_t>(std::min(n, pages.free.size()));
  acquired.list.assign(first, pages.free.end());
  pages.free.erase(first, pages.free.end());
  for (; acquired.list.size() < n; ++acquired.n_new) {
    CUmemGenericAllocationHandle page = 0;
    const CUresult result = TheDriver().create(&page, pages.page_bytes, &pages.memory, /*flags=*/0);
    if (result == CUDA_ERROR_OUT_OF_MEMORY) {
      ReturnPages(pages, acquired);
      return false;
    }
    CheckDriver(result, "a page of state memory");
    acquired.list.push_back(page);
  }
  return true;
}

// False, and nothing mapped, if the GPU has no memory for its page tables.
bool MapPages(StatePages& pages, std::byte* at,
              const std::vector<CUmemGenericAllocationHandle>& list) {
  CUresult result = CUDA_SUCCESS;
  size_t mapped = 0;
  for (; mapped < list.size(); ++mapped) {
    result = TheDriver().map(Address(at + mapped * pages.page_bytes), pages.page_bytes,
                             /*offset=*/0, list[mapped], /*flags=*/0);
    if (result != CUDA_SUCCESS) break;
  }
  if (result == CUDA_SUCCESS) {
    CUmemAccessDesc access = {};
    access.location = pages.memory.location;
    access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    result = TheDriver().set_access(Address(at), list.size() * pages.page_bytes, &access, 1);
  }
  if (result == CUDA_SUCCESS) return true;
  if (result != CUDA_ERROR_OUT_OF_MEMORY) CheckDriver(result, "mapping of state memory");
  while (mapped > 0) UnmapPage(pages, at + --mapped * pages.page_bytes);
  return false;
}

}  // namespace

bool CommitPages(StatePages& pages, std::byte* base, size_t offset, size_t bytes) {
  const size_t page_bytes = pages.page_bytes;
  std::vector<Run>& runs = pages.ranges.at(base);
  // Skips what an earlier call committed whose caller then had no memory for the rest.
  for (const Run& run : runs) {
    const size_t end = run.offset + run.pages.size() * page_bytes;
    if (offset < run.offset || offset >= end || bytes == 0) continue;
    const size_t there = std::min(bytes, end - offset);
    return CommitPages(pages, base, offset + there, bytes - there);
  }
  if (bytes == 0) return true;
  AcquiredPages acquired;
  if (!AcquirePages(pages, bytes / page_bytes, acquired)) return false;
  if (!MapPages(pages, base + offset, acquired.list)) {
    ReturnPages(pages, acquired);
    return false;
  }
  if (acquired.n_new > 0) {
    const size_t new_bytes = acquired.n_new * page_bytes;
    CheckCuda(
        cudaMemsetAsync(base + offset + bytes - new_bytes, 0, new_bytes, pages.device.stream));
  }
  runs.push_back({.offset = offset, .pages = std::move(acquired.list)});
  return true;
}

// Nothing here waits: pages are zeroed after the queued work, beside the work that follows it, and
// unmapped when they are needed.
void ReleaseRange(StatePages& pages, std::byte* base, size_t bytes) {
  const auto range = pages.ranges.find(base);
  Check(range != pages.ranges.end(), "a range of state memory is released once");
  RetiredRange retired = {base, bytes, std::move(range->second), nullptr};
  pages.ranges.erase(range);
  CheckCuda(cudaEventRecord(pages.released, pages.device.stream));
  CheckCuda(cudaStreamWaitEvent(pages.zeroing, pages.released, /*flags=*/0));
  for (const Run& run : retired.runs) {
    CheckCuda(
        cudaMemsetAsync(base + run.offset, 0, run.pages.size() * pages.page_bytes, pages.zeroing));
  }
  CheckCuda(cudaEventCreateWithFlags(&retired.zeroed, cudaEventDisableTiming));
  CheckCuda(cudaEventRecord(retired.zeroed, pages.zeroing));
  pages.retired.push_back(std::move(retired));
}

namespace {

constexpr int kPackThreads = 128;
// Extents of one launch; they are passed as its arguments.
constexpr size_t kMostExtents = 64;

struct Extents {
  StateExtent list[kMostExtents];
  size_t packed_at[kMostExtents];
};

// Grid: extents. to_state: copies from `packed`, else into it.
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
}  // namespace ovq::kernels
