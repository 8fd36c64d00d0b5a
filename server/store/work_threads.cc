#include "server/store/work_threads.h"

#include <utility>

#include "base/thread_name.h"

namespace ovq::store {

bool EndThread(std::thread& thread, std::mutex& mutex, std::condition_variable& changed,
               bool& ending) {
  if (!thread.joinable()) return false;
  {
    std::lock_guard lock(mutex);
    ending = true;
  }
  changed.notify_all();
  thread.join();
  return true;
}

WorkThreads::WorkThreads(int threads, const std::string& name) {
  for (int i = 0; i < threads; ++i) {
    threads_.emplace_back([this, name] { Loop(name); });
  }
}

void WorkThreads::Run(std::function<void()> work) {
  {
    std::lock_guard lock(mutex_);
    work_.push_back(std::move(work));
  }
  changed_.notify_one();
}

void WorkThreads::Finish() {
  {
    std::lock_guard lock(mutex_);
    ending_ = true;
  }
  changed_.notify_all();
  for (std::thread& thread : threads_) thread.join();
  threads_.clear();
}

void WorkThreads::Loop(const std::string& name) {
  NameThisThread(name.c_str());
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [this] { return !work_.empty() || (ending_ && running_ == 0); });
    if (work_.empty()) return;
    std::function<void()> work = std::move(work_.front());
    work_.pop_front();
    ++running_;
    lock.unlock();
    work();
    work = nullptr;  // what it holds may take long to end, and may call Run
    lock.lock();
    --running_;
    if (ending_) changed_.notify_all();
  }
}

}  // namespace ovq::store
