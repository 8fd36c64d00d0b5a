#pragma once

#include <pthread.h>

namespace ovq {

// Names the calling thread, as `top -H` and debuggers show it; threads that it starts inherit the
// name. At most 15 bytes.
inline void NameThisThread(const char* name) { pthread_setname_np(pthread_self(), name); }

}  // namespace ovq
