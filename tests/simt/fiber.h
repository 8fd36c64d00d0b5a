// Stacks that one operating system thread switches between.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

namespace ovq::simt {

struct Fiber {
  void* context = nullptr;
  // Where the stack lies; of the fiber that stands for the calling thread known only to the address
  // sanitizer, which tells.
  const void* stack = nullptr;
  size_t stack_bytes = 0;
  void* fake_stack = nullptr;  // the address sanitizer's
  void* pages = nullptr;
  size_t color = 0;
};

class FiberPool {
 public:
  // Every fiber runs entry, which never returns.
  explicit FiberPool(void (*entry)()) : entry_(entry) {}
  // A fiber at the start of entry, or where it was when given back.
  Fiber* Take();
  void Give(Fiber* fiber) { free_.push_back(fiber); }
  // Takes all fibers back and forgets what they were doing.
  void Reset();
  // Whether the address lies in the page below a stack.
  bool IsGuard(const void* address) const;

 private:
  std::unique_ptr<Fiber> Make();
  void Prepare(Fiber& fiber);

  void (*entry_)();
  std::vector<std::unique_ptr<Fiber>> all_;
  std::vector<Fiber*> free_;
};

// Leaves `from`, the running fiber, until somebody switches back to it.
void SwitchFiber(Fiber& from, Fiber& to);

}  // namespace ovq::simt
