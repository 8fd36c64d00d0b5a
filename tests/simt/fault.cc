#include "tests/simt/fault.h"

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>

#include "tests/simt/block.h"

namespace ovq::simt {
namespace {

constexpr size_t kSignalStackBytes = 256 << 10;

// The process is lost; whatever this calls may be unsafe in a handler, but nothing is to be saved.
void Handle(int, siginfo_t* info, void*) {
  const Executor& executor = Executor::Get();
  const char* what =
      executor.IsStackGuard(info->si_addr) ? "stack overflow" : "memory fault at address";
  std::fprintf(stderr, "SIMT error: %s: %s %p\n", executor.Position().c_str(), what, info->si_addr);
  std::abort();
}

}  // namespace

FaultHandler::FaultHandler() {
  // A stack of its own, because the thread's may be what overflowed.
  thread_local const auto memory = std::make_unique<char[]>(kSignalStackBytes);
  stack_t stack = {};
  stack.ss_sp = memory.get();
  stack.ss_size = kSignalStackBytes;
  sigaltstack(&stack, &old_stack_);
  struct sigaction action = {};
  action.sa_sigaction = Handle;
  action.sa_flags = SA_SIGINFO | SA_ONSTACK;
  sigaction(SIGSEGV, &action, &old_segv_);
  sigaction(SIGBUS, &action, &old_bus_);
}

FaultHandler::~FaultHandler() {
  sigaction(SIGSEGV, &old_segv_, nullptr);
  sigaction(SIGBUS, &old_bus_, nullptr);
  sigaltstack(&old_stack_, nullptr);
}

}  // namespace ovq::simt
