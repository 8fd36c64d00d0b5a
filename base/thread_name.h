#pragma once

#include <pthread.h>

namespace ovq {

// What `top -H` and debuggers call the calling thread; threads that it starts are called so, too.
// At most 15 bytes.
inline void NameThisThread(const char* name) { pthread_setname_np(pthread_self(), name); }

}  // namespace ovq
