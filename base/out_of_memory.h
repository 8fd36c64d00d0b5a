// Failed allocations. Libraries do not survive them, and a thread that ends by an exception leaves
// a call without an answer. So the process ends at once with a message, to be restarted, except in
// scopes that can do without the memory.
#pragma once

namespace ovq {

// From this call on, a failed allocation ends the process with status 1 and a line on stderr.
void EndWhenOutOfMemory();

// While such an object lives, failed allocations of its thread throw std::bad_alloc, or return null
// from nothrow forms.
class AllocationsMayFail {
 public:
  AllocationsMayFail();
  ~AllocationsMayFail();
  AllocationsMayFail(const AllocationsMayFail&) = delete;
  AllocationsMayFail& operator=(const AllocationsMayFail&) = delete;
};

}  // namespace ovq
