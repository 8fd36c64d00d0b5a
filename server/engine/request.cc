#include "server/engine/request.h"

#include <array>
#include <utility>

#include "absl/time/clock.h"
#include "base/check.h"

namespace ovq {

const char* FinishReasonName(FinishReason reason) {
  static constexpr std::array<const char*, 5> kNames = {"stop", "length", "cancelled", "deadline",
                                                        "error"};
  return kNames[static_cast<size_t>(reason)];
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

bool TokenStream::cancelled() const {
  std::lock_guard lock(mutex_);
  return cancel_time_ != absl::InfiniteFuture();
}

absl::Time TokenStream::cancel_time() const {
  std::lock_guard lock(mutex_);
  return cancel_time_;
}

void TokenStream::SetWake(std::function<void()> wake) {
  std::lock_guard lock(mutex_);
  wake_ = std::move(wake);
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
  std::function<void()> wake;
  {
    std::lock_guard lock(mutex_);
    if (events_.empty()) return std::nullopt;
    event = std::move(events_.front());
    events_.pop_front();
    if (events_.size() + 1 == capacity_) wake = wake_;
  }
  if (wake) wake();
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

void TokenStream::Cancel() {
  std::function<void()> wake;
  {
    std::lock_guard lock(mutex_);
    if (cancel_time_ != absl::InfiniteFuture()) return;
    cancel_time_ = absl::Now();
    wake = wake_;
  }
  if (wake) wake();
}

}  // namespace ovq
