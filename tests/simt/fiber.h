// Stacks that one operating system thread switches between.
#pragma once

#include <boost/context/detail/fcontext.hpp>
#include <cstddef>
#include <memory>
#include <vector>

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/common_interface_defs.h>
#endif

namespace ovq::simt {

struct Fiber {
  void* context = nullptr;
  // The stack's address. For the fiber of the calling thread, only the address sanitizer knows and
  // reports it.
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
  Fiber* Acquire();
  void Release(Fiber* fiber) { free_.push_back(fiber); }
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

inline void BeforeSwitch([[maybe_unused]] Fiber& from, [[maybe_unused]] Fiber& to) {
#ifdef __SANITIZE_ADDRESS__
  __sanitizer_start_switch_fiber(&from.fake_stack, to.stack, to.stack_bytes);
#endif
}

// Called in the fiber that was switched to.
inline void AfterSwitch([[maybe_unused]] Fiber& from, [[maybe_unused]] void* fake_stack) {
#ifdef __SANITIZE_ADDRESS__
  const void* stack;
  size_t bytes;
  __sanitizer_finish_switch_fiber(fake_stack, &stack, &bytes);
  from.stack = stack;
  from.stack_bytes = bytes;
#endif
}

// Leaves `from`, the running fiber, until somebody switches back to it.
inline void SwitchFiber(Fiber& from, Fiber& to) {
  BeforeSwitch(from, to);
  const boost::context::detail::transfer_t transfer =
      boost::context::detail::jump_fcontext(to.context, &from);
  Fiber& came_from = *static_cast<Fiber*>(transfer.data);
  came_from.context = transfer.fctx;
  AfterSwitch(came_from, from.fake_stack);
}

}  // namespace ovq::simt
