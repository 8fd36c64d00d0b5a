#include "base/signals.h"

#include <pthread.h>

#include <utility>

namespace ovq {
namespace {

constexpr int kEnd = SIGUSR1;  // from the destructor, to the thread

sigset_t SetOf(const std::vector<int>& signals) {
  sigset_t set;
  sigemptyset(&set);
  for (const int signal : signals) sigaddset(&set, signal);
  return set;
}

}  // namespace

void BlockSignals(const std::vector<int>& signals) {
  const sigset_t set = SetOf(signals);
  pthread_sigmask(SIG_BLOCK, &set, nullptr);
}

SignalWaiter::SignalWaiter(const std::vector<int>& signals, std::function<void(int)> on_signal)
    : on_signal_(std::move(on_signal)), signals_(SetOf(signals)) {
  BlockSignals({kEnd});
  sigaddset(&signals_, kEnd);
  thread_ = std::thread([this] { Loop(); });
}

SignalWaiter::~SignalWaiter() {
  pthread_kill(thread_.native_handle(), kEnd);
  thread_.join();
}

void SignalWaiter::Loop() {
  for (;;) {
    int signal = 0;
    if (sigwait(&signals_, &signal) != 0) continue;
    if (signal == kEnd) return;
    on_signal_(signal);
  }
}

}  // namespace ovq
