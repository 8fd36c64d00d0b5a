// A thread's accesses to shared memory, checked.
#include <cstring>

#include "tests/simt/block.h"

namespace ovq::simt {

void Executor::SetSharedFailure(const std::string& text, const char* access, int64_t offset,
                                uint32_t bytes, const void* address) {
  SetFailure(std::string(access) + " of " + std::to_string(bytes) + " shared bytes at offset " +
                 std::to_string(offset) + ", " + text,
             address);
}

void Executor::RefuseShared(int64_t offset, uint32_t bytes, uint32_t alignment,
                            const void* address) {
  if (!running_) SetFailure("shared memory", address);
  if (offset < 0 || offset + bytes > launch_.shared_bytes) {
    SetSharedFailure("out of bounds: the block has " + std::to_string(launch_.shared_bytes),
                     "access", offset, bytes, address);
  } else {
    SetSharedFailure("misaligned: the element needs " + std::to_string(alignment), "access", offset,
                     bytes, address);
  }
  Leave();
}

void Executor::Refuse(const Conflict& conflict, const char* access, int64_t offset, uint32_t bytes,
                      const void* address) {
  SetSharedFailure(
      conflict.Text() +
          (conflict.byte == offset ? "" : " (byte " + std::to_string(conflict.byte) + ")"),
      access, offset, bytes, address);
  Leave();
}

void Executor::CheckRead(int64_t offset, uint32_t bytes, bool whole_warp, const void* address) {
  LeaveIf(shadow_.Read(offset, bytes, CurrentActor(whole_warp)), "read", offset, bytes, address);
}

void Executor::CheckWrite(int64_t offset, uint32_t bytes, const void* address) {
  LeaveIf(shadow_.Write(offset, bytes, CurrentActor(false)), "write", offset, bytes, address);
}

void Executor::CheckAtomic(int64_t offset, uint32_t bytes, const void* address) {
  LeaveIf(shadow_.Atomic(offset, bytes, CurrentActor(false)), "atomic access", offset, bytes,
          address);
}

// The source is read now, which the hardware may do too; only the landing is put off.
void Executor::CopyAsync(int64_t to, const void* from, bool valid, const void* address) {
  Shared(to, 16, 16, address);
  if (valid && reinterpret_cast<uintptr_t>(from) % 16 != 0) {
    SetFailure("asynchronous copy from a misaligned global address", address);
    Leave();
  }
  LeaveIf(shadow_.BeginCopy(to, 16, CurrentActor(false)), "asynchronous copy", to, 16, address);
  PendingCopy copy{static_cast<uint32_t>(to), false, 0, {}};
  if (valid) std::memcpy(copy.data, from, 16);
  current_->copies.push_back(copy);
}

void Executor::CommitCopies() {
  for (PendingCopy& copy : current_->copies) {
    if (copy.committed) continue;
    copy.committed = true;
    copy.group = current_->groups;
  }
  ++current_->groups;
}

void Executor::WaitCopies(uint32_t pending_groups) { Land(*current_, pending_groups, false); }

void Executor::Land(Thread& thread, uint32_t pending_groups, bool uncommitted_too) {
  const Actor actor{thread.id, false, &warps_[thread.id / 32].clocks};
  std::erase_if(thread.copies, [&](const PendingCopy& copy) {
    if (copy.committed ? copy.group + pending_groups >= thread.groups : !uncommitted_too) {
      return false;
    }
    std::memcpy(shared_.data() + copy.to, copy.data, 16);
    shadow_.EndCopy(copy.to, 16, actor);
    return true;
  });
}

}  // namespace ovq::simt
