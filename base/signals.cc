#include "base/signals.h"

#include <pthread.h>

#include <utility>

namespace ovq {
namespace {

constexpr int kEnd = SIGUSR1;  // sent by the destructor to the thread

sigset_t MakeSignalSet(const std::vector<int>& signals) {
  sigset_t set;
  sigemptyset(&set);
  for (const int signal : signals) sigaddset(&set, signal);
  return set;
}

}  // namespace

void BlockSignals(const std::vector<int>& signals) {
  const sigset_t set = MakeSignalSet(signals);
  pthread_sigmask(SIG_BLOCK, &set, nullptr);
}

SignalWaiter::SignalWaiter(const std::vector<int>& signals, std::function<void(int)> on_signal) {
  BlockSignals({kEnd});
  sigset_t set = MakeSignalSet(signals);
  sigaddset(&set, kEnd);
  thread_ = std::thread([this, set, on_signal = std::move(on_signal)] {
    while (!ending_) {
      int signal = 0;
      if (sigwait(&set, &signal) == 0 && signal != kEnd) on_signal(signal);
    }
  });
}

SignalWaiter::~SignalWaiter() {
  ending_ = true;
  pthread_kill(thread_.native_handle(), kEnd);
  thread_.join();
}

}  // namespace ovq
