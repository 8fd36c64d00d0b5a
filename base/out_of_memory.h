// What happens where an allocation fails: libraries do not survive that, and a thread that ends by
// an exception leaves a call without an answer. So the process ends at once and says why, to be
// started again, except in places that can do without the memory.
#pragma once

namespace ovq {

// From here on an allocation that fails ends the process with status 1 and a line to stderr.
void EndWhenOutOfMemory();

// While one lives, allocations of its thread that fail throw std::bad_alloc, or give null where
// asked so.
class AllocationsMayFail {
 public:
  AllocationsMayFail();
  ~AllocationsMayFail();
  AllocationsMayFail(const AllocationsMayFail&) = delete;
  AllocationsMayFail& operator=(const AllocationsMayFail&) = delete;
};

}  // namespace ovq
