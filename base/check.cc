#include "base/check.h"

#include <cstdio>
#include <cstdlib>

namespace ovq {

void CheckFailed(const char* what, const char* file, int line) {
  std::fprintf(stderr, "%s:%d: check failed: %s\n", file, line, what);
  std::abort();
}

}  // namespace ovq
