// OutOfDeviceMemory, RefusedByDevice and CatchDeviceErrors: how a GPU without enough memory for a
// model or a batch, or a library that refuses a call, becomes a status. (Where the host has none,
// the process ends: base/out_of_memory.h.)
#pragma once

#include <stdexcept>

#include "absl/status/status.h"

namespace ovq::kernels {

// Thrown by Buffer, ScratchArena and DeviceContext::Staging on CUDA; only CatchDeviceErrors
// catches it. It is an exception because scratch memory is allocated deep inside kernel launches,
// which have no other way to fail.
class OutOfDeviceMemory : public std::runtime_error {
  using std::runtime_error::runtime_error;
};

// Thrown by a product where the library that computes it refuses it, launching nothing.
class RefusedByDevice : public std::runtime_error {
  using std::runtime_error::runtime_error;
};

// Runs fn. ResourceExhausted, with the bytes wanted and free, if the GPU ran out of memory;
// Internal if a library refused a call. The memory that fn allocated is then free again, but
// kernels that it launched before still run, so the states they write are no longer usable.
template <class Fn>
absl::Status CatchDeviceErrors(Fn&& fn) {
  try {
    fn();
  } catch (const OutOfDeviceMemory& error) {
    return absl::ResourceExhaustedError(error.what());
  } catch (const RefusedByDevice& error) {
    return absl::InternalError(error.what());
  }
  return absl::OkStatus();
}

}  // namespace ovq::kernels
