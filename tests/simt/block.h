// Runs the blocks of a launch one after the other, a block's threads as fibers. A thread runs until
// it waits at a barrier or at a collective of its warp; then another one that can run does.
#pragma once

#include <cstdint>
#include <functional>
#include <source_location>
#include <string>
#include <vector>

#include "tests/simt/fiber.h"
#include "tests/simt/shadow.h"
#include "tests/simt/types.h"

namespace ovq::simt {

using Where = std::source_location;

constexpr uint32_t kMaxThreads = 1024;
constexpr uint32_t kMaxSharedBytes = 227 << 10;

// The meeting that a thread waits for. Threads meet where operation, mask and place in the source
// agree.
struct Meeting {
  const char* operation = nullptr;
  uint32_t mask = 0;  // lanes of the warp; 0: the whole block
  Where where;
  bool operator==(const Meeting& other) const {
    return operation == other.operation && mask == other.mask &&
           where.line() == other.where.line() && where.column() == other.where.column();
  }
};

// A 16-byte copy to shared memory that has been issued and not landed.
struct PendingCopy {
  uint32_t to;
  bool committed;
  uint32_t group;  // counted from the thread's start
  unsigned char data[16];
};

struct Thread {
  uint3 index;
  uint32_t id;
  Fiber* fiber;  // none before its first instruction
  bool exited;
  bool waited_for_kernels;
  Meeting waits;
  std::vector<PendingCopy> copies;
  uint32_t groups;  // committed so far
};

struct Warp {
  struct Group {
    Meeting meeting;
    uint32_t arrived;
  };
  Group groups[32];
  int group_count;
  uint32_t ready;
  const void* arguments[32];
  WarpClocks clocks;
};

// Gets the arguments of all lanes of the mask, from the last one to come.
using Complete = void (*)(const void* const* arguments, uint32_t mask);

// The data shared by all blocks of one launch.
struct Launch {
  const void* kernel;
  dim3 grid, block;
  uint32_t shared_bytes;
  bool descending;
  bool early;  // every thread must call WaitForKernelsBefore
  const std::function<void()>* body;
};

// The one executor of the process. A launch holds it from beginning to end.
class Executor {
 public:
  static Executor& Get() {
    static Executor executor;
    return executor;
  }

  // False after an error, which has been reported.
  bool Run(const Launch& launch);

  // The following are called by the running thread of a kernel. SetFailure keeps the error; Leave
  // then gives the launch up. They are separate because nothing on the thread's stack is destroyed
  // after Leave.
  void SetFailure(const std::string& text, const void* address);
  [[noreturn]] void Leave();
  void Meet(const char* operation, uint32_t mask, Where where, const void* argument,
            Complete complete);
  void SyncWarp(uint32_t mask, Where where);
  // Block barrier: counts the threads for which the predicate holds.
  uint32_t SyncThreads(const char* operation, bool predicate, Where where);
  void Yield();
  uint32_t CurrentLane() const { return current_->id % 32; }

  // Shared memory; offsets count from its beginning.
  void* Shared(int64_t offset, uint32_t bytes, uint32_t alignment, const void* address);
  void CheckRead(int64_t offset, uint32_t bytes, bool whole_warp, const void* address);
  void CheckWrite(int64_t offset, uint32_t bytes, const void* address);
  void CheckAtomic(int64_t offset, uint32_t bytes, const void* address);
  void CopyAsync(int64_t to, const void* from, bool valid, const void* address);
  void CommitCopies();
  void WaitCopies(uint32_t pending_groups);
  void WaitForKernelsBefore() { current_->waited_for_kernels = true; }

  // For the handler of memory faults: kernel, block and thread; empty outside of launches.
  std::string Position() const;
  bool IsStackGuard(const void* address) const { return fibers_.IsGuard(address); }

 private:
  Executor();
  static void RunThreads();
  bool RunBlock(uint3 index);
  void Prepare(const Launch& launch);
  Thread* PickReady();
  Thread* PickReadyAfter(uint32_t id);
  void MakeReady(uint32_t warp, uint32_t lanes);
  void SetCurrent(Thread* thread);
  // The fiber to continue with: of the next thread that can run, or back to RunBlock.
  Fiber& Next() { return FiberFor(PickReady()); }
  Fiber& FiberFor(Thread* next);
  void Suspend();
  // False if the thread has to wait.
  bool Arrive(const Meeting& meeting, const void* argument, Complete complete);
  bool ArriveAtBarrier(const Meeting& meeting, bool predicate);
  void CompleteBarrier();
  std::string DescribeDeadlock() const;
  Actor CurrentActor(bool whole_warp) const {
    return {current_->id, whole_warp, &warps_[current_->id / 32].clocks};
  }
  [[noreturn]] void RefuseShared(int64_t offset, uint32_t bytes, uint32_t alignment,
                                 const void* address);
  void Land(Thread& thread, uint32_t pending_groups, bool uncommitted_too);
  // Fails the launch if there is a conflict.
  void LeaveIf(const Conflict& conflict, const char* access, int64_t offset, uint32_t bytes,
               const void* address) {
    if (conflict) Refuse(conflict, access, offset, bytes, address);
  }
  [[noreturn]] void Refuse(const Conflict& conflict, const char* access, int64_t offset,
                           uint32_t bytes, const void* address);
  void SetSharedFailure(const std::string& text, const char* access, int64_t offset, uint32_t bytes,
                        const void* address);

  Launch launch_ = {};
  bool running_ = false;
  uint32_t thread_count_ = 0;
  uint32_t exited_ = 0;
  Fiber main_;
  FiberPool fibers_;
  Thread* current_ = nullptr;
  uint32_t current_warp_ = 0;
  uint32_t ready_warps_ = 0;
  std::vector<Thread> threads_;
  std::vector<Warp> warps_;
  // The block barrier where threads wait now.
  Meeting barrier_;
  uint32_t barrier_arrived_ = 0;
  uint32_t barrier_true_ = 0;
  uint32_t barrier_result_ = 0;
  Shadow shadow_;
  std::vector<unsigned char> shared_;
  std::string failure_;
  const void* failure_address_ = nullptr;
};

inline void* Executor::Shared(int64_t offset, uint32_t bytes, uint32_t alignment,
                              const void* address) {
  if (!running_ || offset < 0 || offset + bytes > launch_.shared_bytes ||
      (offset & (alignment - 1)) != 0) {
    RefuseShared(offset, bytes, alignment, address);
  }
  return shared_.data() + offset;
}

// Inline down to the switch: every frame between it and the kernel costs a return that the
// processor cannot foresee.
inline void Executor::Suspend() {
  Thread* self = current_;
  SwitchFiber(*self->fiber, Next());
}

inline void Executor::Meet(const char* operation, uint32_t mask, Where where, const void* argument,
                           Complete complete) {
  if (!Arrive({operation, mask, where}, argument, complete)) Suspend();
}

inline uint32_t Executor::SyncThreads(const char* operation, bool predicate, Where where) {
  if (!ArriveAtBarrier({operation, 0, where}, predicate)) Suspend();
  return barrier_result_;
}

}  // namespace ovq::simt
