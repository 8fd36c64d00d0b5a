// Helpers of the executor's tests.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <utility>
#include <vector>

namespace ovq::simt {

template <class... P, class... A>
cudaError_t Launch(void (*kernel)(P...), dim3 grid, dim3 block, size_t shared_bytes,
                   A&&... arguments) {
  cudaLaunchConfig_t config = {};
  config.gridDim = grid;
  config.blockDim = block;
  config.dynamicSmemBytes = shared_bytes;
  return cudaLaunchKernelEx(&config, kernel, static_cast<P>(std::forward<A>(arguments))...);
}

// An array in the device's memory.
template <class T>
class DeviceArray {
 public:
  explicit DeviceArray(size_t n) : n_(n) { cudaMalloc(&p_, n * sizeof(T)); }
  explicit DeviceArray(const std::vector<T>& values) : DeviceArray(values.size()) { Write(values); }
  ~DeviceArray() { cudaFree(p_); }
  DeviceArray(const DeviceArray&) = delete;
  DeviceArray& operator=(const DeviceArray&) = delete;

  void Write(const std::vector<T>& values) {
    cudaMemcpy(p_, values.data(), n_ * sizeof(T), cudaMemcpyHostToDevice);
  }
  std::vector<T> Read() const {
    std::vector<T> values(n_);
    cudaMemcpy(values.data(), p_, n_ * sizeof(T), cudaMemcpyDeviceToHost);
    return values;
  }
  T* get() const { return p_; }

 private:
  T* p_ = nullptr;
  size_t n_;
};

}  // namespace ovq::simt
