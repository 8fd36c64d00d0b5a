// Signals handled on a thread of their own.
#pragma once

#include <signal.h>

#include <atomic>
#include <functional>
#include <thread>
#include <vector>

namespace ovq {

// Blocks these signals, so that only a SignalWaiter receives them. Call it before threads start:
// they inherit the mask.
void BlockSignals(const std::vector<int>& signals);

// Waits for blocked signals and runs on_signal on its own thread. It uses SIGUSR1 itself; a SIGUSR1
// from elsewhere does nothing.
class SignalWaiter {
 public:
  SignalWaiter(const std::vector<int>& signals, std::function<void(int signal)> on_signal);
  ~SignalWaiter();
  SignalWaiter(const SignalWaiter&) = delete;
  SignalWaiter& operator=(const SignalWaiter&) = delete;

 private:
  std::atomic<bool> ending_ = false;
  std::thread thread_;
};

}  // namespace ovq
