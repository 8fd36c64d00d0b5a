#include "server/engine/common/engine_api.h"

#include <utility>

#include "base/check.h"

namespace ovq::engine {

void CancelSignal::Cancel() {
  {
    std::lock_guard lock(mutex_);
    if (time_) return;
    time_ = std::chrono::steady_clock::now();
  }
  Wake();
}

std::optional<SteadyTime> CancelSignal::time() const {
  std::lock_guard lock(mutex_);
  return time_;
}

void CancelSignal::SetWake(std::function<void()> wake) {
  std::lock_guard lock(mutex_);
  wake_ = std::move(wake);
}

void CancelSignal::Wake() const {
  std::unique_lock lock(mutex_);
  const std::function<void()> wake = wake_;
  lock.unlock();
  if (wake) wake();
}

void TokenStream::Push(StreamEvent event) {
  {
    std::lock_guard lock(mutex_);
    Check(!closed_, "no event follows Close");
    size_ += SizeOf(event);
    events_.push_back(std::move(event));
  }
  Notify();
}

void TokenStream::Close(absl::Status status) {
  {
    std::lock_guard lock(mutex_);
    Check(!closed_, "a stream is closed once");
    closed_ = true;
    status_ = std::move(status);
  }
  Notify();
}

bool TokenStream::full() const {
  std::lock_guard lock(mutex_);
  return size_ >= capacity_;
}

void TokenStream::Notify() {
  std::lock_guard lock(listener_mutex_);
  const std::function<void()> listener = listener_;  // it may be replaced while it runs
  if (listener) listener();
}

void TokenStream::SetListener(std::function<void()> listener) {
  std::lock_guard lock(listener_mutex_);
  listener_ = std::move(listener);
  std::unique_lock events_lock(mutex_);
  const bool waiting = !events_.empty() || closed_;
  events_lock.unlock();
  if (waiting) Notify();
}

std::optional<StreamEvent> TokenStream::TryPop() {
  std::optional<StreamEvent> event;
  bool drained;
  {
    std::lock_guard lock(mutex_);
    if (events_.empty()) return std::nullopt;
    event = std::move(events_.front());
    events_.pop_front();
    const bool was_full = size_ >= capacity_;
    size_ -= SizeOf(*event);
    drained = was_full && size_ < capacity_;
  }
  if (drained) cancel_.Wake();
  return event;
}

bool TokenStream::closed() const {
  std::lock_guard lock(mutex_);
  return closed_ && events_.empty();
}

absl::Status TokenStream::status() const {
  std::lock_guard lock(mutex_);
  return status_;
}

}  // namespace ovq::engine
