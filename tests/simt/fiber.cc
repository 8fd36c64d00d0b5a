#include "tests/simt/fiber.h"

#include <sys/mman.h>

#include <cstdio>
#include <cstdlib>

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#endif

namespace ovq::simt {
namespace {

constexpr size_t kStackBytes = 64 << 10;
constexpr size_t kGuardBytes = 4 << 10;
// Tops of stacks at different places within a page, lest they all share the same cache sets.
constexpr size_t kColors = 15;
constexpr size_t kColorBytes = 256;

void (*fiber_entry)() = nullptr;

void Enter(boost::context::detail::transfer_t transfer) {
  Fiber& from = *static_cast<Fiber*>(transfer.data);
  from.context = transfer.fctx;
  AfterSwitch(from, nullptr);
  fiber_entry();
}

}  // namespace

std::unique_ptr<Fiber> FiberPool::Make() {
  auto fiber = std::make_unique<Fiber>();
  void* pages = mmap(nullptr, kGuardBytes + kStackBytes, PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (pages == MAP_FAILED || mprotect(pages, kGuardBytes, PROT_NONE) != 0) {
    std::perror("stack of a fiber");
    std::abort();
  }
  fiber->pages = pages;
  fiber->color = all_.size() % kColors;
  Prepare(*fiber);
  return fiber;
}

void FiberPool::Prepare(Fiber& fiber) {
  fiber_entry = entry_;
  fiber.fake_stack = nullptr;
  fiber.stack = static_cast<char*>(fiber.pages) + kGuardBytes;
  fiber.stack_bytes = kStackBytes;
#ifdef __SANITIZE_ADDRESS__
  ASAN_UNPOISON_MEMORY_REGION(fiber.stack, fiber.stack_bytes);
#endif
  char* top = static_cast<char*>(fiber.pages) + kGuardBytes + kStackBytes;
  fiber.context =
      boost::context::detail::make_fcontext(top - fiber.color * kColorBytes, kStackBytes, Enter);
}

Fiber* FiberPool::Acquire() {
  if (free_.empty()) {
    all_.push_back(Make());
    return all_.back().get();
  }
  Fiber* fiber = free_.back();
  free_.pop_back();
  return fiber;
}

void FiberPool::Reset() {
  free_.clear();
  for (const auto& fiber : all_) {
    Prepare(*fiber);
    free_.push_back(fiber.get());
  }
}

bool FiberPool::IsGuard(const void* address) const {
  for (const auto& fiber : all_) {
    const auto* guard = static_cast<const char*>(fiber->pages);
    if (address >= guard && address < guard + kGuardBytes) return true;
  }
  return false;
}

}  // namespace ovq::simt
