#include "tests/simt/block.h"

#include <algorithm>
#include <bit>
#include <cstdlib>

#include "tests/simt/report.h"

uint3 threadIdx;
uint3 blockIdx;
dim3 blockDim;
dim3 gridDim;

namespace ovq::simt {
namespace {

std::string Coordinates(uint3 at) {
  return "(" + std::to_string(at.x) + ", " + std::to_string(at.y) + ", " + std::to_string(at.z) +
         ")";
}

uint3 ToIndex(uint64_t linear, dim3 size) {
  return {static_cast<unsigned>(linear % size.x), static_cast<unsigned>(linear / size.x % size.y),
          static_cast<unsigned>(linear / size.x / size.y)};
}

}  // namespace

Executor::Executor() : fibers_(&RunThreads), threads_(kMaxThreads), warps_(kMaxThreads / 32) {
  for (uint32_t id = 0; id < kMaxThreads; ++id) threads_[id].id = id;
  shared_.resize(kMaxSharedBytes);
  shadow_.Resize(kMaxSharedBytes);
}

bool Executor::Run(const Launch& launch) {
  launch_ = launch;
  blockDim = launch.block;
  gridDim = launch.grid;
  thread_count_ = launch.block.x * launch.block.y * launch.block.z;
  for (uint32_t id = 0; id < thread_count_; ++id) threads_[id].index = ToIndex(id, launch.block);
  const uint64_t blocks = uint64_t{launch.grid.x} * launch.grid.y * launch.grid.z;
  running_ = true;
  bool good = true;
  for (uint64_t i = 0; i < blocks && good; ++i) {
    good = RunBlock(ToIndex(launch.descending ? blocks - 1 - i : i, launch.grid));
  }
  running_ = false;
  return good;
}

bool Executor::RunBlock(uint3 index) {
  blockIdx = index;
  shadow_.NextBlock();
  exited_ = 0;
  barrier_arrived_ = barrier_true_ = 0;
  ready_warps_ = 0;
  for (uint32_t id = 0; id < thread_count_; ++id) {
    Thread& thread = threads_[id];
    thread.fiber = nullptr;
    thread.exited = false;
    thread.waited_for_kernels = false;
    thread.groups = 0;
  }
  const uint32_t warps = (thread_count_ + 31) / 32;
  for (uint32_t w = 0; w < warps; ++w) {
    const uint32_t lanes = std::min(thread_count_ - w * 32, 32u);
    warps_[w].group_count = 0;
    warps_[w].clocks.Reset();
    warps_[w].ready = 0;
    MakeReady(w, lanes == 32 ? ~0u : (1u << lanes) - 1);
  }
  current_warp_ = launch_.descending ? warps - 1 : 0;
  SwitchFiber(main_, Next());

  if (exited_ == thread_count_) return true;
  std::string text = failure_;
  if (text.empty()) {
    text = "divergent barrier in kernel " + Symbolize(launch_.kernel) + ", block " +
           Coordinates(blockIdx) + ": " + DescribeDeadlock();
  } else {
    text = Position() + ": " + text;
    if (failure_address_ != nullptr) text += "\n  in " + Symbolize(failure_address_);
  }
  failure_.clear();
  fibers_.Reset();
  shadow_.Clear();
  for (uint32_t id = 0; id < thread_count_; ++id) threads_[id].copies.clear();
  Report(text);
  return false;
}

std::string Executor::Position() const {
  if (!running_) return "";
  return "kernel " + Symbolize(launch_.kernel) + ", block " + Coordinates(blockIdx) + ", thread " +
         Coordinates(threadIdx);
}

void Executor::SetFailure(const std::string& text, const void* address) {
  if (!running_) {
    Report("device code outside of a kernel: " + text);
    std::abort();
  }
  failure_ = text;
  failure_address_ = address;
}

void Executor::Leave() {
  SwitchFiber(*current_->fiber, main_);
  __builtin_unreachable();
}

// The loop of every fiber: runs threads from their beginning, one after the other as long as none
// of them waits.
void Executor::RunThreads() {
  Executor& executor = Get();
  for (;;) {
    (*executor.launch_.body)();
    Thread& thread = *executor.current_;
    if (executor.launch_.early && !thread.waited_for_kernels) {
      executor.SetFailure("launched early, and ended without waiting for the kernels before",
                          nullptr);
      executor.Leave();
    }
    if (!thread.copies.empty()) executor.Land(thread, 0, true);
    thread.exited = true;
    ++executor.exited_;
    Fiber* fiber = thread.fiber;
    Thread* next = executor.PickReady();
    if (next != nullptr && next->fiber == nullptr) {
      next->fiber = fiber;
      executor.SetCurrent(next);
      continue;
    }
    executor.fibers_.Release(fiber);
    SwitchFiber(*fiber, executor.FiberFor(next));
  }
}

void Executor::SetCurrent(Thread* thread) {
  current_ = thread;
  threadIdx = thread->index;
}

Fiber& Executor::FiberFor(Thread* next) {
  if (next == nullptr) return main_;
  if (next->fiber == nullptr) next->fiber = fibers_.Acquire();
  SetCurrent(next);
  return *next->fiber;
}

void Executor::MakeReady(uint32_t warp, uint32_t lanes) {
  warps_[warp].ready |= lanes;
  ready_warps_ |= 1u << warp;
}

Thread* Executor::PickReady() {
  if (warps_[current_warp_].ready == 0) {
    if (ready_warps_ == 0) return nullptr;
    current_warp_ =
        launch_.descending ? 31 - std::countl_zero(ready_warps_) : std::countr_zero(ready_warps_);
  }
  Warp& warp = warps_[current_warp_];
  const uint32_t lane =
      launch_.descending ? 31 - std::countl_zero(warp.ready) : std::countr_zero(warp.ready);
  warp.ready &= ~(1u << lane);
  if (warp.ready == 0) ready_warps_ &= ~(1u << current_warp_);
  return &threads_[current_warp_ * 32 + lane];
}

// The next one in the order of their numbers, whatever the order of the launch.
Thread* Executor::PickReadyAfter(uint32_t id) {
  for (uint32_t step = 1; step < thread_count_; ++step) {
    const uint32_t next = (id + step) % thread_count_;
    Warp& warp = warps_[next / 32];
    if ((warp.ready >> (next % 32) & 1) == 0) continue;
    warp.ready &= ~(1u << (next % 32));
    if (warp.ready == 0) ready_warps_ &= ~(1u << (next / 32));
    return &threads_[next];
  }
  return nullptr;
}

void Executor::Yield() {
  Thread* self = current_;
  Thread* next = PickReadyAfter(self->id);
  if (next == nullptr) return;
  MakeReady(self->id / 32, 1u << (self->id % 32));
  SwitchFiber(*self->fiber, FiberFor(next));
}

}  // namespace ovq::simt
