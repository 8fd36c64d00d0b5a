// Check ends the process when an invariant of this code is broken. Bad input is never a Check but
// an absl::Status.
#pragma once

namespace ovq {

[[noreturn]] void CheckFailed(const char* what, const char* file, int line);

constexpr void Check(bool ok, const char* what, const char* file = __builtin_FILE(),
                     int line = __builtin_LINE()) {
  if (!ok) CheckFailed(what, file, line);
}

}  // namespace ovq
