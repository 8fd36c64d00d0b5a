// Executor::Meet and the block barrier: threads waiting for each other.
#include <algorithm>
#include <cstdio>
#include <map>

#include "tests/simt/block.h"

namespace ovq::simt {
namespace {

std::string Describe(const Meeting& meeting) {
  char mask[32] = "";
  if (meeting.mask != 0) std::snprintf(mask, sizeof(mask), "(0x%08x)", meeting.mask);
  return std::string(meeting.operation) + mask + " " + meeting.where.file_name() + ":" +
         std::to_string(meeting.where.line());
}

std::string Ranges(const std::vector<uint32_t>& ids) {
  std::string text;
  for (size_t i = 0; i < ids.size();) {
    size_t end = i + 1;
    while (end < ids.size() && ids[end] == ids[end - 1] + 1) ++end;
    text += (i == 0 ? "" : ", ") + std::to_string(ids[i]);
    if (end - i > 1) text += "-" + std::to_string(ids[end - 1]);
    i = end;
  }
  return text;
}

}  // namespace

bool Executor::Arrive(const Meeting& meeting, const void* argument, Complete complete) {
  const uint32_t mask = meeting.mask;
  const uint32_t warp_id = current_->id / 32;
  const uint32_t lane = current_->id % 32;
  Warp& warp = warps_[warp_id];
  if ((mask >> lane & 1) == 0) {
    SetFailure(Describe(meeting) + ": the calling lane is not in the mask", nullptr);
    Leave();
  }
  warp.arguments[lane] = argument;
  int g = 0;
  while (g < warp.group_count && !(warp.groups[g].meeting == meeting)) ++g;
  if (g == warp.group_count) warp.groups[warp.group_count++] = {meeting, 0};
  Warp::Group& group = warp.groups[g];
  group.arrived |= 1u << lane;
  if (group.arrived != mask) {
    current_->waits = meeting;
    return false;
  }
  group = warp.groups[--warp.group_count];
  if (complete != nullptr) complete(warp.arguments, mask);
  const uint32_t others = mask & ~(1u << lane);
  if (others != 0) MakeReady(warp_id, others);
  return true;
}

void Executor::SyncWarp(uint32_t mask, Where where) {
  Meet("__syncwarp", mask, where, nullptr, [](const void* const*, uint32_t mask) {
    Executor& executor = Get();
    executor.warps_[executor.current_->id / 32].clocks.Sync(mask);
  });
}

bool Executor::ArriveAtBarrier(const Meeting& meeting, bool predicate) {
  if (barrier_arrived_ == 0) barrier_ = meeting;
  current_->waits = meeting;
  // A thread at another barrier waits for ever, and so do all others: a deadlock, which is
  // reported.
  if (!(barrier_ == meeting)) return false;
  barrier_true_ += predicate ? 1 : 0;
  if (++barrier_arrived_ != thread_count_) return false;
  CompleteBarrier();
  return true;
}

void Executor::CompleteBarrier() {
  barrier_result_ = barrier_true_;
  barrier_arrived_ = barrier_true_ = 0;
  shadow_.NextInterval();
  for (uint32_t w = 0; w * 32 < thread_count_; ++w) {
    const uint32_t lanes = std::min(thread_count_ - w * 32, 32u);
    uint32_t ready = lanes == 32 ? ~0u : (1u << lanes) - 1;
    if (w == current_->id / 32) ready &= ~(1u << (current_->id % 32));
    if (ready != 0) MakeReady(w, ready);
    warps_[w].clocks.Reset();
  }
}

std::string Executor::DescribeDeadlock() const {
  std::map<std::string, std::vector<uint32_t>> groups;
  for (uint32_t id = 0; id < thread_count_; ++id) {
    const Thread& thread = threads_[id];
    groups[thread.exited ? "have exited" : "wait at " + Describe(thread.waits)].push_back(id);
  }
  std::string text;
  for (const auto& [what, ids] : groups) {
    text += "\n  threads " + Ranges(ids) + " " + what;
  }
  return text;
}

}  // namespace ovq::simt
