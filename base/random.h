// Numbers that nobody can guess.
#pragma once

#include <string>

namespace ovq {

// 32 hexadecimal digits: SHA-256 of 32 bytes, which the system gives once in the process's life,
// and of a count, so that later nothing depends on the system. The first call ends the process if
// the system gives none. Any thread.
std::string UnguessableHex();

}  // namespace ovq
