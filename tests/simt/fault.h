// FaultHandler reports which thread of which kernel touched memory that is not mapped.
#pragma once

#include <csignal>

namespace ovq::simt {

// Active during its lifetime, on the thread that created it.
class FaultHandler {
 public:
  FaultHandler();
  ~FaultHandler();
  FaultHandler(const FaultHandler&) = delete;
  FaultHandler& operator=(const FaultHandler&) = delete;

 private:
  struct sigaction old_segv_, old_bus_;
  stack_t old_stack_;
};

}  // namespace ovq::simt
