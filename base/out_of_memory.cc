#include "base/out_of_memory.h"

#include <unistd.h>

#include <cstdio>
#include <exception>
#include <new>
#include <string_view>
#include <system_error>

namespace ovq {

void EndWhenOutOfMemory() {
  std::set_new_handler([] {
    constexpr std::string_view kLine = "out of memory: the system refused an allocation; ending\n";
    (void)!write(STDERR_FILENO, kLine.data(), kLine.size());
    _exit(1);
  });
  static const std::terminate_handler before = std::get_terminate();
  std::set_terminate([] {
    try {
      if (const std::exception_ptr thrown = std::current_exception())
        std::rethrow_exception(thrown);
    } catch (const std::system_error& error) {
      dprintf(STDERR_FILENO, "the system refused a request of this process: %s; ending\n",
              error.what());
      _exit(1);
    } catch (...) {
    }
    before();
  });
}

}  // namespace ovq
