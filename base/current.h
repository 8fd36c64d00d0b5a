// Current<T>: a shared value that is replaced as a whole while others use it.
#pragma once

#include <memory>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

namespace ovq {

// Any thread. A caller that has got a value keeps it, also beyond the next Set.
template <class T>
class Current {
 public:
  explicit Current(T value) { Set(std::move(value)); }

  void Set(T value) {
    auto shared = std::make_shared<const T>(std::move(value));
    absl::MutexLock lock(&mutex_);
    value_ = std::move(shared);
  }
  std::shared_ptr<const T> current() const {
    absl::MutexLock lock(&mutex_);
    return value_;
  }

 private:
  mutable absl::Mutex mutex_;
  std::shared_ptr<const T> value_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace ovq
