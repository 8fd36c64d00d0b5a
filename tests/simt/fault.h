// Says which thread of which kernel touched memory that is not there.
#pragma once

#include <csignal>

namespace ovq::simt {

// While one lives, on the thread that made it.
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
