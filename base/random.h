// Unguessable identifiers.
#pragma once

#include <string>

namespace ovq {

// 32 hexadecimal digits of the SHA-256 of 32 random bytes and a counter. The system gives the bytes
// once in the process's life, so later calls do not depend on it. The first call ends the process
// if the system gives none. Any thread.
std::string UnguessableHex();

}  // namespace ovq
