// Large memory that is about to be written for the first time.
#pragma once

#include <cstddef>
#include <string>

namespace ovq {

// From here on allocations are mapped on their own, whatever malloc was asked for before.
inline constexpr size_t kLargeBytes = size_t{32} << 20;

// Asks the system for huge pages where it has them for the asking, with which writing to fresh
// memory takes a fifth of the time. No more of it comes into use than whole huge pages within it.
void PreferHugePages(void* data, size_t bytes);

// An empty text with room for so many bytes.
std::string RoomFor(size_t bytes);

}  // namespace ovq
