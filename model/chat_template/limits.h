// Limits of one rendering of a chat template.
#pragma once

#include <cstddef>
#include <cstdint>

namespace ovq::jinja {

struct RenderLimits {
  int64_t max_steps = 10'000'000;  // nodes, items and 64-byte units of text that are read
  int max_depth = 400;             // nested nodes, calls and values
  size_t max_value_bytes = size_t{256} << 20;  // total over all values that the rendering creates
  size_t max_output_bytes = size_t{16} << 20;
};

inline constexpr size_t kMaxTemplateBytes = size_t{1} << 20;
inline constexpr int64_t kMaxRange = 100'000;  // longest range(), as in Jinja's sandbox

}  // namespace ovq::jinja
