// The driver's virtual memory management on anonymous files: a physical allocation is a file, which
// keeps its contents while it is mapped nowhere.
#include <cuda.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <map>
#include <mutex>
#include <string_view>

#include "tests/simt/memory.h"
#include "tests/simt/runtime_api.h"
#include "tests/simt/simt.h"
#include "tests/simt/stream.h"

namespace ovq::simt {
namespace {

constexpr size_t kGranularity = 2 << 20;
constexpr unsigned char kFill = 0xff;

struct Physical {
  int file;
  size_t bytes;
  int uses;  // mappings, and one for the handle until it is released
};
struct Mapping {
  size_t bytes;
  CUmemGenericAllocationHandle handle;
};

struct VirtualMemory {
  std::mutex mutex;
  std::map<CUdeviceptr, size_t> reserved;
  std::map<CUdeviceptr, Mapping> mapped;
  std::map<CUmemGenericAllocationHandle, Physical> physical;
  CUmemGenericAllocationHandle next_handle = 1;
  size_t unmapped = 0;
  int mappings_to_fail = 0;
};
VirtualMemory& All() {
  static auto* all = new VirtualMemory;
  return *all;
}

void* Pointer(CUdeviceptr p) { return reinterpret_cast<void*>(p); }

bool Granular(size_t bytes) { return bytes != 0 && bytes % kGranularity == 0; }

bool IsReserved(CUdeviceptr p, size_t bytes) {
  auto next = All().reserved.upper_bound(p);
  if (next == All().reserved.begin()) return false;
  --next;
  return p + bytes <= next->first + next->second;
}

bool OverlapsMapping(CUdeviceptr p, size_t bytes) {
  const auto next = All().mapped.lower_bound(p + bytes);
  if (next == All().mapped.begin()) return false;
  const auto& [begin, mapping] = *std::prev(next);
  return begin + mapping.bytes > p;
}

void Release(CUmemGenericAllocationHandle handle) {
  Physical& physical = All().physical.at(handle);
  if (--physical.uses > 0) return;
  close(physical.file);
  MemoryRegistry::Get().Return(physical.bytes);
  All().physical.erase(handle);
}

// Calls visit for the mappings that make up exactly the range; false if none do.
template <class Visit>
bool ForMappings(CUdeviceptr p, size_t bytes, Visit visit) {
  CUdeviceptr at = p;
  while (at < p + bytes) {
    const auto found = All().mapped.find(at);
    if (found == All().mapped.end()) return false;
    at += found->second.bytes;
  }
  if (at != p + bytes) return false;
  for (at = p; at < p + bytes;) {
    const Mapping mapping = All().mapped.at(at);
    visit(at, mapping);
    at += mapping.bytes;
  }
  return true;
}

}  // namespace

size_t UnmapCount() {
  const std::lock_guard lock(All().mutex);
  return All().unmapped;
}

void FailMappings(int n) {
  const std::lock_guard lock(All().mutex);
  All().mappings_to_fail = n;
}

}  // namespace ovq::simt

using namespace ovq::simt;

CUresult cuMemAddressReserve(CUdeviceptr* p, size_t bytes, size_t alignment, CUdeviceptr,
                             unsigned long long flags) {
  if (!Granular(bytes) || flags != 0 || (alignment != 0 && !Granular(alignment))) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const size_t align = alignment == 0 ? kGranularity : alignment;
  void* pages =
      mmap(nullptr, bytes + align, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (pages == MAP_FAILED) return CUDA_ERROR_OUT_OF_MEMORY;
  const auto begin = reinterpret_cast<CUdeviceptr>(pages);
  *p = (begin + align - 1) / align * align;
  if (*p != begin) munmap(pages, *p - begin);
  munmap(Pointer(*p + bytes), begin + align - *p);
  const std::lock_guard lock(All().mutex);
  All().reserved[*p] = bytes;
  return CUDA_SUCCESS;
}

CUresult cuMemAddressFree(CUdeviceptr p, size_t bytes) {
  const std::lock_guard lock(All().mutex);
  const auto found = All().reserved.find(p);
  if (found == All().reserved.end() || found->second != bytes || OverlapsMapping(p, bytes)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  All().reserved.erase(found);
  munmap(Pointer(p), bytes);
  return CUDA_SUCCESS;
}

CUresult cuMemCreate(CUmemGenericAllocationHandle* handle, size_t bytes,
                     const CUmemAllocationProp* properties, unsigned long long flags) {
  if (!Granular(bytes) || flags != 0 || properties->type != CU_MEM_ALLOCATION_TYPE_PINNED ||
      properties->location.type != CU_MEM_LOCATION_TYPE_DEVICE || properties->location.id != 0) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (!MemoryRegistry::Get().Reserve(bytes)) return CUDA_ERROR_OUT_OF_MEMORY;
  const int file = memfd_create("device memory", MFD_CLOEXEC);
  void* pages = MAP_FAILED;
  if (file >= 0 && ftruncate(file, static_cast<off_t>(bytes)) == 0) {
    pages = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  }
  if (pages == MAP_FAILED) {
    if (file >= 0) close(file);
    MemoryRegistry::Get().Return(bytes);
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  std::memset(pages, kFill, bytes);
  munmap(pages, bytes);
  const std::lock_guard lock(All().mutex);
  *handle = All().next_handle++;
  All().physical[*handle] = {file, bytes, 1};
  return CUDA_SUCCESS;
}

CUresult cuMemRelease(CUmemGenericAllocationHandle handle) {
  const std::lock_guard lock(All().mutex);
  if (!All().physical.contains(handle)) return CUDA_ERROR_INVALID_VALUE;
  Release(handle);
  return CUDA_SUCCESS;
}

CUresult cuMemMap(CUdeviceptr p, size_t bytes, size_t offset, CUmemGenericAllocationHandle handle,
                  unsigned long long flags) {
  const std::lock_guard lock(All().mutex);
  const auto found = All().physical.find(handle);
  if (found == All().physical.end() || found->second.bytes != bytes || offset != 0 || flags != 0 ||
      p % kGranularity != 0 || !IsReserved(p, bytes) || OverlapsMapping(p, bytes)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (All().mappings_to_fail > 0) {
    --All().mappings_to_fail;
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  if (mmap(Pointer(p), bytes, PROT_NONE, MAP_SHARED | MAP_FIXED, found->second.file, 0) ==
      MAP_FAILED) {
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  ++found->second.uses;
  All().mapped[p] = {bytes, handle};
  return CUDA_SUCCESS;
}

CUresult cuMemUnmap(CUdeviceptr p, size_t bytes) {
  const std::lock_guard lock(All().mutex);
  const bool exact = ForMappings(p, bytes, [](CUdeviceptr at, const Mapping& mapping) {
    mmap(Pointer(at), mapping.bytes, PROT_NONE,
         MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
    MemoryRegistry::Get().RemoveMapped(Pointer(at));
    All().mapped.erase(at);
    ++All().unmapped;
    Release(mapping.handle);
  });
  return exact ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuMemSetAccess(CUdeviceptr p, size_t bytes, const CUmemAccessDesc* access, size_t count) {
  const std::lock_guard lock(All().mutex);
  if (count != 1 || access->location.type != CU_MEM_LOCATION_TYPE_DEVICE) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  int protection = PROT_NONE;
  if (access->flags == CU_MEM_ACCESS_FLAGS_PROT_READ) protection = PROT_READ;
  if (access->flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE) protection = PROT_READ | PROT_WRITE;
  const bool exact = ForMappings(p, bytes, [&](CUdeviceptr at, const Mapping& mapping) {
    mprotect(Pointer(at), mapping.bytes, protection);
    MemoryRegistry::Get().RemoveMapped(Pointer(at));
    if (protection != PROT_NONE) MemoryRegistry::Get().AddMapped(Pointer(at), mapping.bytes);
  });
  return exact ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuMemGetAllocationGranularity(size_t* bytes, const CUmemAllocationProp*,
                                       CUmemAllocationGranularity_flags) {
  *bytes = kGranularity;
  return CUDA_SUCCESS;
}

CUresult cuGetErrorName(CUresult error, const char** name) {
  switch (error) {
    case CUDA_SUCCESS:
      *name = "CUDA_SUCCESS";
      return CUDA_SUCCESS;
    case CUDA_ERROR_INVALID_VALUE:
      *name = "CUDA_ERROR_INVALID_VALUE";
      return CUDA_SUCCESS;
    case CUDA_ERROR_OUT_OF_MEMORY:
      *name = "CUDA_ERROR_OUT_OF_MEMORY";
      return CUDA_SUCCESS;
    case CUDA_ERROR_NOT_SUPPORTED:
      *name = "CUDA_ERROR_NOT_SUPPORTED";
      return CUDA_SUCCESS;
  }
  *name = nullptr;
  return CUDA_ERROR_INVALID_VALUE;
}

CUresult cuGetErrorString(CUresult error, const char** text) { return cuGetErrorName(error, text); }

cudaError_t cudaGetDriverEntryPointByVersion(const char* symbol, void** function, unsigned,
                                             unsigned long long,
                                             cudaDriverEntryPointQueryResult* status) {
  struct Entry {
    std::string_view name;
    void* function;
  };
#define OVQ_ENTRY(name) \
  { #name, reinterpret_cast < void*>(&name) }
  static const Entry entries[] = {
      OVQ_ENTRY(cuMemAddressReserve),
      OVQ_ENTRY(cuMemAddressFree),
      OVQ_ENTRY(cuMemCreate),
      OVQ_ENTRY(cuMemRelease),
      OVQ_ENTRY(cuMemMap),
      OVQ_ENTRY(cuMemUnmap),
      OVQ_ENTRY(cuMemSetAccess),
      OVQ_ENTRY(cuMemGetAllocationGranularity),
      OVQ_ENTRY(cuGetErrorName),
      OVQ_ENTRY(cuGetErrorString),
  };
#undef OVQ_ENTRY
  *function = nullptr;
  for (const Entry& entry : entries) {
    if (entry.name == symbol) *function = entry.function;
  }
  if (status != nullptr) {
    *status =
        *function != nullptr ? cudaDriverEntryPointSuccess : cudaDriverEntryPointSymbolNotFound;
  }
  // Real CUDA also succeeds here: a caller that passes a status reads the answer there.
  return *function != nullptr || status != nullptr ? cudaSuccess : Failed(cudaErrorSymbolNotFound);
}

cudaError_t cudaGetDriverEntryPoint(const char* symbol, void** function, unsigned long long flags,
                                    cudaDriverEntryPointQueryResult* status) {
  return cudaGetDriverEntryPointByVersion(symbol, function, CUDART_VERSION, flags, status);
}
