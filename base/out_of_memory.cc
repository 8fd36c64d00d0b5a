#include "base/out_of_memory.h"

#include <unistd.h>

#include <new>
#include <string_view>

namespace ovq {
namespace {

thread_local int may_fail = 0;  // number of open AllocationsMayFail scopes

void OnFailure() {
  if (may_fail > 0) throw std::bad_alloc();
  constexpr std::string_view kLine = "out of memory: the system refused an allocation; ending\n";
  (void)!write(STDERR_FILENO, kLine.data(), kLine.size());
  _exit(1);
}

}  // namespace

void EndWhenOutOfMemory() { std::set_new_handler(OnFailure); }

AllocationsMayFail::AllocationsMayFail() { ++may_fail; }
AllocationsMayFail::~AllocationsMayFail() { --may_fail; }

}  // namespace ovq
