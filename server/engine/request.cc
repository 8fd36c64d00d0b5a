#include "server/engine/request.h"

#include <array>
#include <utility>

#include "base/check.h"

namespace ovq {

const char* FinishReasonName(FinishReason reason) {
  static constexpr std::array<const char*, 5> kNames = {"stop", "length", "cancelled", "deadline",
                                                        "error"};
  return kNames[static_cast<size_t>(reason)];
}

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
    events_.push_back(std::move(event));
  }
  readable_.notify_one();
  Notify();
}

void TokenStream::Close(absl::Status status) {
  {
    std::lock_guard lock(mutex_);
    Check(!closed_, "a stream is closed once");
    closed_ = true;
    status_ = std::move(status);
  }
  readable_.notify_all();
  Notify();
}

bool TokenStream::full() const {
  std::lock_guard lock(mutex_);
  return events_.size() >= capacity_;
}

void TokenStream::Notify() {
  std::unique_lock lock(listener_mutex_);
  listener_returned_.wait(lock, [this] { return !listener_running_; });
  if (!listener_) return;
  const std::function<void()> listener = listener_;
  listener_running_ = true;
  listener_thread_ = std::this_thread::get_id();
  lock.unlock();
  listener();
  lock.lock();
  listener_running_ = false;
  lock.unlock();
  listener_returned_.notify_all();
}

void TokenStream::SetListener(std::function<void()> listener) {
  {
    std::unique_lock lock(listener_mutex_);
    if (listener_running_ && listener_thread_ == std::this_thread::get_id()) {
      listener_ = std::move(listener);  // takes effect at the next event
      return;
    }
    listener_returned_.wait(lock, [this] { return !listener_running_; });
    listener_ = std::move(listener);
    if (!listener_) return;
  }
  bool waiting;
  {
    std::lock_guard lock(mutex_);
    waiting = !events_.empty() || closed_;
  }
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
    drained = events_.size() + 1 == capacity_;
  }
  if (drained) cancel_.Wake();
  return event;
}

std::optional<StreamEvent> TokenStream::Pop() {
  for (;;) {
    if (std::optional<StreamEvent> event = TryPop()) return event;
    std::unique_lock lock(mutex_);
    readable_.wait(lock, [this] { return !events_.empty() || closed_; });
    if (events_.empty()) return std::nullopt;
  }
}

bool TokenStream::closed() const {
  std::lock_guard lock(mutex_);
  return closed_ && events_.empty();
}

absl::Status TokenStream::status() const {
  std::lock_guard lock(mutex_);
  return status_;
}

}  // namespace ovq
