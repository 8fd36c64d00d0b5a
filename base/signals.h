// Signals as calls on a thread of their own.
#pragma once

#include <signal.h>

#include <atomic>
#include <functional>
#include <thread>
#include <vector>

namespace ovq {

// From here on these signals reach a SignalWaiter alone. Call it before threads start: they inherit
// the blocked signals.
void BlockSignals(const std::vector<int>& signals);

// Takes signals that are blocked. on_signal runs on the waiter's thread. SIGUSR1 is the waiter's
// own; one from elsewhere does nothing.
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
