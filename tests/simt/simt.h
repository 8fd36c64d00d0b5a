// The host executor's interface for tests (README.md).
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace ovq::simt {

// During its lifetime errors are kept instead of ending the process. They still end the launch.
class CollectErrors {
 public:
  CollectErrors();
  ~CollectErrors();
  CollectErrors(const CollectErrors&) = delete;
  CollectErrors& operator=(const CollectErrors&) = delete;
};

// The errors kept since the last call.
std::vector<std::string> DrainErrors();

// During its lifetime kernels, copies and graphs run when the host waits for them, and not before,
// so that results show where the host changes or reads memory too early. So they do in the whole
// process where the environment has OVQ_SIMT_DEFER.
class DeferWork {
 public:
  DeferWork();
  ~DeferWork();  // runs what is left
  DeferWork(const DeferWork&) = delete;
  DeferWork& operator=(const DeferWork&) = delete;

 private:
  const bool before_;
};

// The order in which a launch runs its blocks, and a block its threads where it has the choice.
// Alternate, the default: ascending and descending in turn.
enum class Order { kAlternate, kAscending, kDescending };
void SetOrder(Order order);

// The memory that the device claims to have; allocations beyond it fail. Before it is set: as
// the environment's OVQ_SIMT_DEVICE_BYTES says, or 8 GiB.
void SetDeviceMemory(size_t bytes);

// The shared memory that a thread block may ask for: 227 KiB by default.
void SetMaxSharedBytes(size_t bytes);

// The architecture of the PTX that all kernels were compiled from: 90 by default.
void SetPtxVersion(int version);

// Kernels launched so far by this process, replays of graphs included.
size_t LaunchCount();

// The most thread blocks of a kernel on a multiprocessor, as registers limit them: 32 by default.
void SetMostBlocks(int blocks);

// __threadfence of one thread, counted in all launches so far.
size_t FenceCount();

// Calls so far in which the host waits for the device, and pages unmapped.
size_t WaitCount();
size_t UnmapCount();

// The next n mappings of a page fail for want of memory.
void FailMappings(int n);

// After the next `first` allocations of device and page-locked memory, n fail.
void FailAllocations(int n, int first = 0);
int AllocationsToFail();  // how many of these are still to come

// The next n instantiations of a graph fail for want of memory, or its launches.
void FailGraphs(int n);
void FailGraphLaunches(int n);

// An algorithm of the stand-in for cuBLASLt (include/cublasLt.h).
struct CublasAlgorithm {
  int id;
  bool descending = false;  // adds the terms of a sum from the last to the first: other bits
  bool links = false;       // adds 16 terms at a time, as MmaBF16 does
  int64_t refuses = 0;      // a number of rows that it does not take
  int delay = 0;            // seconds that a call seems to take longer than it does,
  int few_rows_delay = 0;   // for at most 16 rows
};

// The algorithms that there are from now on. None, as at first: contexts made from now on find that
// the library cannot be used.
void SetCublas(std::vector<CublasAlgorithm> algorithms);

}  // namespace ovq::simt
