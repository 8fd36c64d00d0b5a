// What one rendering of a chat template may spend.
#pragma once

#include <cstddef>
#include <cstdint>

namespace ovq {

struct RenderLimits {
  int64_t max_steps = 10'000'000;  // nodes, items, and every 64 bytes of text that are looked at
  int max_depth = 400;             // nested nodes, calls and values
  size_t max_value_bytes = size_t{256} << 20;  // of all values together that the rendering makes
  size_t max_output_bytes = size_t{16} << 20;
};

inline constexpr size_t kMaxTemplateBytes = size_t{1} << 20;
inline constexpr int64_t kMaxRange = 100'000;  // length of range(); that of Jinja's sandbox

}  // namespace ovq
