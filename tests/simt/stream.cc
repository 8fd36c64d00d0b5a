#include "tests/simt/stream.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <deque>
#include <limits>
#include <mutex>
#include <set>

#include "tests/simt/memory.h"
#include "tests/simt/simt.h"

struct CUstream_st {
  unsigned flags;
  std::shared_ptr<ovq::simt::Capture> capture;
};

struct CUevent_st {
  unsigned flags;
  bool recorded = false;
  uint64_t after = 0;  // how much work was submitted before it was recorded last
  std::shared_ptr<std::chrono::steady_clock::time_point> when;  // the work before it was done
  // The capture of the stream where the event was recorded last, if that was capturing.
  std::shared_ptr<ovq::simt::Capture> capture;
};

struct CUgraph_st {
  std::vector<ovq::simt::Work> work;
};

struct CUgraphExec_st {
  std::vector<ovq::simt::Work> work;
};

namespace ovq::simt {
namespace {

// The sum of all delays.
std::atomic<std::chrono::seconds> delays{std::chrono::seconds(0)};

// Everything alive, never destroyed: handles may be used until the very end.
struct Handles {
  std::recursive_mutex mutex;
  std::set<cudaStream_t> streams;
  std::set<cudaEvent_t> events;
  std::set<cudaGraph_t> graphs;
  std::set<cudaGraphExec_t> execs;
};
Handles& All() {
  static auto* handles = new Handles;
  return *handles;
}

bool Known(cudaStream_t stream) { return stream == nullptr || All().streams.contains(stream); }

std::vector<std::shared_ptr<Capture>> ActiveCaptures() {
  std::vector<std::shared_ptr<Capture>> captures;
  for (cudaStream_t stream : All().streams) {
    if (stream->capture != nullptr) captures.push_back(stream->capture);
  }
  return captures;
}

// The default stream waits for all blocking streams, hence may not be used while one records.
cudaError_t RefuseDefaultStream() {
  for (cudaStream_t stream : All().streams) {
    if (stream->capture == nullptr || (stream->flags & cudaStreamNonBlocking) != 0) continue;
    stream->capture->invalid = true;
    return cudaErrorStreamCaptureImplicit;
  }
  return cudaSuccess;
}

cudaError_t RunAll(const std::vector<Work>& works) {
  for (const Work& work : works) {
    if (const cudaError_t error = work(); error != cudaSuccess) return error;
  }
  return cudaSuccess;
}

std::atomic<size_t> waits = 0;
std::atomic<int> instantiations_to_fail = 0, launches_to_fail = 0;

// Work that is done when the host waits for it, in the order of the calls, whatever their streams.
struct Deferred {
  std::recursive_mutex mutex;
  bool on = std::getenv("OVQ_SIMT_DEFER") != nullptr;
  std::deque<Work> work;
  uint64_t submitted = 0, done = 0;
};
Deferred& TheDeferred() {
  static auto* deferred = new Deferred;
  return *deferred;
}

// Does the first `n` works of all that were submitted, as far as they are left.
cudaError_t DoSubmitted(uint64_t n) {
  Deferred& deferred = TheDeferred();
  const std::lock_guard lock(deferred.mutex);
  while (deferred.done < n && !deferred.work.empty()) {
    const Work work = std::move(deferred.work.front());
    deferred.work.pop_front();
    ++deferred.done;
    if (const cudaError_t error = work(); error != cudaSuccess) return Failed(error);
  }
  return cudaSuccess;
}

cudaError_t Synchronize(uint64_t submitted = std::numeric_limits<uint64_t>::max()) {
  ++waits;
  if (const cudaError_t error = RefuseWhileCapturing(); error != cudaSuccess) return error;
  if (const cudaError_t error = DoSubmitted(submitted); error != cudaSuccess) return error;
  MemoryRegistry::Get().CheckGuards();
  return cudaSuccess;
}

template <class T>
cudaError_t Destroy(std::set<T>& all, T handle) {
  const std::lock_guard lock(All().mutex);
  if (all.erase(handle) == 0) return Failed(cudaErrorInvalidResourceHandle);
  delete handle;
  return cudaSuccess;
}

}  // namespace

DeferWork::DeferWork() : before_(TheDeferred().on) { TheDeferred().on = true; }
DeferWork::~DeferWork() {
  DoAllSubmitted();
  TheDeferred().on = before_;
}
cudaError_t DoAllSubmitted() { return DoSubmitted(std::numeric_limits<uint64_t>::max()); }

size_t WaitCount() { return waits; }
void FailGraphs(int n) { instantiations_to_fail = n; }
void FailGraphLaunches(int n) { launches_to_fail = n; }

cudaError_t RefuseWhileCapturing() {
  const std::lock_guard lock(All().mutex);
  cudaError_t error = cudaSuccess;
  for (const auto& capture : ActiveCaptures()) {
    const bool mine = capture->thread == std::this_thread::get_id();
    if (capture->mode == cudaStreamCaptureModeRelaxed) continue;
    if (capture->mode == cudaStreamCaptureModeThreadLocal && !mine) continue;
    capture->invalid = true;
    error = Failed(cudaErrorStreamCaptureUnsupported);
  }
  return error;
}

cudaError_t Submit(cudaStream_t stream, Work work) {
  {
    const std::lock_guard lock(All().mutex);
    if (!Known(stream)) return Failed(cudaErrorInvalidResourceHandle);
    if (stream == nullptr) {
      if (const cudaError_t error = RefuseDefaultStream(); error != cudaSuccess) {
        return Failed(error);
      }
    } else if (stream->capture != nullptr) {
      if (stream->capture->invalid) return Failed(cudaErrorStreamCaptureInvalidated);
      stream->capture->work.push_back(std::move(work));
      return cudaSuccess;
    }
  }
  Deferred& deferred = TheDeferred();
  const std::lock_guard lock(deferred.mutex);
  ++deferred.submitted;
  deferred.work.push_back(std::move(work));
  return deferred.on ? cudaSuccess : DoSubmitted(deferred.submitted);
}

void Delay(std::chrono::seconds time) { delays = delays.load() + time; }

}  // namespace ovq::simt

using namespace ovq::simt;

cudaError_t cudaDeviceSynchronize() { return Synchronize(); }

cudaError_t cudaStreamCreate(cudaStream_t* stream) {
  return cudaStreamCreateWithFlags(stream, cudaStreamDefault);
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags) {
  const std::lock_guard lock(All().mutex);
  *stream = new CUstream_st{flags, nullptr};
  All().streams.insert(*stream);
  return cudaSuccess;
}

cudaError_t cudaStreamDestroy(cudaStream_t stream) { return Destroy(All().streams, stream); }

cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  const std::lock_guard lock(All().mutex);
  if (!Known(stream)) return Failed(cudaErrorInvalidResourceHandle);
  if (stream != nullptr && stream->capture != nullptr) {
    stream->capture->invalid = true;
    return Failed(cudaErrorStreamCaptureUnsupported);
  }
  return Synchronize();
}

cudaError_t cudaStreamQuery(cudaStream_t stream) { return cudaStreamSynchronize(stream); }

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  const std::lock_guard lock(All().mutex);
  if (!Known(stream) || !All().events.contains(event)) {
    return Failed(cudaErrorInvalidResourceHandle);
  }
  if (event->capture == nullptr) {
    // A recording may not wait for what was not recorded.
    if (stream == nullptr || stream->capture == nullptr || !event->recorded) return cudaSuccess;
    stream->capture->invalid = true;
    return Failed(cudaErrorStreamCaptureIsolation);
  }
  if (stream == nullptr) return Failed(cudaErrorStreamCaptureImplicit);
  stream->capture = event->capture;
  return cudaSuccess;
}

cudaError_t cudaEventCreate(cudaEvent_t* event) {
  return cudaEventCreateWithFlags(event, cudaEventDefault);
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags) {
  const std::lock_guard lock(All().mutex);
  *event = new CUevent_st{.flags = flags, .when = nullptr, .capture = nullptr};
  All().events.insert(*event);
  return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  const std::lock_guard lock(All().mutex);
  if (!Known(stream) || !All().events.contains(event)) {
    return Failed(cudaErrorInvalidResourceHandle);
  }
  event->capture = stream == nullptr ? nullptr : stream->capture;
  event->recorded = event->capture == nullptr;
  if (!event->recorded) return cudaSuccess;
  const auto when = std::make_shared<std::chrono::steady_clock::time_point>();
  event->when = when;
  const cudaError_t error = Submit(stream, [when] {
    *when = std::chrono::steady_clock::now() + delays.load();
    return cudaSuccess;
  });
  event->after = TheDeferred().submitted;
  return error;
}

cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  const std::lock_guard lock(All().mutex);
  if (!All().events.contains(event)) return Failed(cudaErrorInvalidResourceHandle);
  if (event->capture != nullptr) {
    event->capture->invalid = true;
    return Failed(cudaErrorStreamCaptureUnsupported);
  }
  return Synchronize(event->after);
}

cudaError_t cudaEventQuery(cudaEvent_t event) { return cudaEventSynchronize(event); }

cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t start, cudaEvent_t end) {
  const std::lock_guard lock(All().mutex);
  for (cudaEvent_t event : {start, end}) {
    if (!All().events.contains(event) || !event->recorded ||
        (event->flags & cudaEventDisableTiming) != 0) {
      return Failed(cudaErrorInvalidResourceHandle);
    }
  }
  *milliseconds = std::chrono::duration<float, std::milli>(*end->when - *start->when).count();
  return cudaSuccess;
}

cudaError_t cudaEventDestroy(cudaEvent_t event) { return Destroy(All().events, event); }

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode) {
  const std::lock_guard lock(All().mutex);
  if (stream == nullptr) return Failed(cudaErrorStreamCaptureUnsupported);
  if (!Known(stream)) return Failed(cudaErrorInvalidResourceHandle);
  if (stream->capture != nullptr) return Failed(cudaErrorInvalidValue);
  stream->capture = std::make_shared<Capture>();
  stream->capture->mode = mode;
  stream->capture->thread = std::this_thread::get_id();
  stream->capture->origin = stream;
  return cudaSuccess;
}

cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  const std::lock_guard lock(All().mutex);
  *graph = nullptr;
  if (stream == nullptr || !Known(stream) || stream->capture == nullptr ||
      stream->capture->origin != stream) {
    return Failed(cudaErrorStreamCaptureUnmatched);
  }
  const std::shared_ptr<Capture> capture = stream->capture;
  for (cudaStream_t other : All().streams) {
    if (other->capture == capture) other->capture = nullptr;
  }
  for (cudaEvent_t event : All().events) {
    if (event->capture == capture) event->capture = nullptr;
  }
  if (capture->invalid) return Failed(cudaErrorStreamCaptureInvalidated);
  *graph = new CUgraph_st{std::move(capture->work)};
  All().graphs.insert(*graph);
  return cudaSuccess;
}

cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus* status) {
  const std::lock_guard lock(All().mutex);
  if (!Known(stream)) return Failed(cudaErrorInvalidResourceHandle);
  *status = cudaStreamCaptureStatusNone;
  if (stream != nullptr && stream->capture != nullptr) {
    *status = stream->capture->invalid ? cudaStreamCaptureStatusInvalidated
                                       : cudaStreamCaptureStatusActive;
  }
  return cudaSuccess;
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t* exec, cudaGraph_t graph, unsigned long long) {
  const std::lock_guard lock(All().mutex);
  if (!All().graphs.contains(graph)) return Failed(cudaErrorInvalidValue);
  if (instantiations_to_fail > 0) {
    --instantiations_to_fail;
    return Failed(cudaErrorMemoryAllocation);
  }
  *exec = new CUgraphExec_st{graph->work};
  All().execs.insert(*exec);
  return cudaSuccess;
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream) {
  {
    const std::lock_guard lock(All().mutex);
    if (!All().execs.contains(exec)) return Failed(cudaErrorInvalidValue);
    if (launches_to_fail > 0) {
      --launches_to_fail;
      return Failed(cudaErrorMemoryAllocation);
    }
  }
  return Submit(stream, [works = exec->work] { return RunAll(works); });
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph) { return Destroy(All().graphs, graph); }

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec) { return Destroy(All().execs, exec); }
