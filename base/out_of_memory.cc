#include "base/out_of_memory.h"

#include <unistd.h>

#include <new>
#include <string_view>

namespace ovq {

void EndWhenOutOfMemory() {
  std::set_new_handler([] {
    constexpr std::string_view kLine = "out of memory: the system refused an allocation; ending\n";
    (void)!write(STDERR_FILENO, kLine.data(), kLine.size());
    _exit(1);
  });
}

}  // namespace ovq
