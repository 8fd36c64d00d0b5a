// Huge pages for large memory that is about to be written for the first time.
#pragma once

#include <cstddef>
#include <string>

namespace ovq {

// Allocations of at least this size get a mapping of their own, whatever malloc was asked for
// before.
inline constexpr size_t kLargeBytes = size_t{32} << 20;

// Asks for huge pages, if the system grants them on request (madvise). First writes then take a
// fifth of the time. Only whole huge pages within the range are affected.
void PreferHugePages(void* data, size_t bytes);

// An empty string with capacity `bytes`.
std::string RoomFor(size_t bytes);

}  // namespace ovq
