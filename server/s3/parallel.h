// Work on many things by a store's threads.
#pragma once

#include <cstddef>
#include <functional>
#include <latch>
#include <memory>

#include "server/store/work_threads.h"

namespace ovq::s3 {

// Calls run(0) to run(count - 1) on the threads, several at a time, and waits for all of them. Not
// from one of these threads.
inline void RunAll(store::WorkThreads& threads, size_t count,
                   const std::function<void(size_t)>& run) {
  const auto left = std::make_shared<std::latch>(static_cast<std::ptrdiff_t>(count));
  for (size_t i = 0; i < count; ++i) {
    threads.Run([&run, left, i] {
      run(i);
      left->count_down();
    });
  }
  left->wait();
}

}  // namespace ovq::s3
