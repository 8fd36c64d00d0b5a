// Defines WorkThreads, the threads of a store for work that takes long, and the end of its others.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace ovq::store {

// Ends a thread that waits on `changed` until `ending`, which the mutex guards. False if it has
// ended before.
bool EndThread(std::thread& thread, std::mutex& mutex, std::condition_variable& changed,
               bool& ending);

// Runs work in the order of the calls, several pieces at a time. Thread-safe.
class WorkThreads {
 public:
  WorkThreads(int threads, const std::string& name);
  ~WorkThreads() { Finish(); }

  void Run(std::function<void()> work);
  // Does all work, also what that work adds, and ends the threads. Work that comes later is not
  // done.
  void Finish();

 private:
  void Loop(const std::string& name);

  std::mutex mutex_;  // guards the members up to work_
  std::condition_variable changed_;
  bool ending_ = false;
  int running_ = 0;
  std::deque<std::function<void()>> work_;

  std::vector<std::thread> threads_;
};

}  // namespace ovq::store
