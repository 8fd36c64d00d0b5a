// Prefetching what is read soon.
#pragma once

#include <cstdint>

#include "hwy/base.h"

namespace ovq::kernels {

constexpr int64_t kCacheLine = 64;  // bytes, on every machine that this runs on

// Fetches the line at `address` into the core's second cache; the first holds what is read now. The
// address may be any. It is inlined always, as GCC takes a function that does nothing else to have
// no effect, and drops its calls.
HWY_INLINE void PrefetchToL2(const void* address) {
  __builtin_prefetch(address, /*rw=*/0, /*locality=*/2);
}
// Fetches [address, address + bytes).
HWY_INLINE void PrefetchToL2(const void* address, int64_t bytes) {
  const auto* const begin = static_cast<const char*>(address);
  for (int64_t at = 0; at < bytes; at += kCacheLine) PrefetchToL2(begin + at);
}

}  // namespace ovq::kernels
