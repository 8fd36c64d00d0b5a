// Streams and what is recorded from them.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "tests/simt/runtime_api.h"

namespace ovq::simt {

using Work = std::function<cudaError_t()>;

// Capture: the work recorded between cudaStreamBeginCapture and cudaStreamEndCapture, in the order
// of the calls, which is compatible with the order of streams and events.
struct Capture {
  cudaStreamCaptureMode mode;
  std::thread::id thread;
  cudaStream_t origin;
  bool invalid = false;
  std::vector<Work> work;
};

// Runs the work, records it if the stream is recording, or leaves it for later (DeferWork).
cudaError_t Submit(cudaStream_t stream, Work work);

// Runs what was left for later.
cudaError_t DoAllSubmitted();

// Lets events recorded from now on seem this much later than they are. Called by work that runs.
void Delay(std::chrono::seconds time);

// The error that a call gets which may not be made while somebody records; cudaSuccess otherwise.
// Such a call spoils the recording.
cudaError_t RefuseWhileCapturing();

// Keeps the error for cudaGetLastError and returns it.
cudaError_t Failed(cudaError_t error);

}  // namespace ovq::simt
