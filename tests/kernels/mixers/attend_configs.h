// The layer configurations, as in the mixers, that attention on CUDA is tested with.
#pragma once

#include <string>
#include <utility>

#include "tests/kernels/mixers/attend_sessions.h"

namespace ovq::kernels::test {

inline constexpr DType kF32 = DType::kF32, kBF16 = DType::kBF16, kI8 = DType::kI8;

inline AttendConfig Ovq(std::string name, int n_heads, int n_kv_heads, int d, int dv, DType dtype,
                        DType compute, int chunk, int cap) {
  return {.name = std::move(name),
          .n_heads = n_heads,
          .n_kv_heads = n_kv_heads,
          .head_dim = d,
          .value_head_dim = dv,
          .dtype = dtype,
          .compute_dtype = compute,
          .wave_span = chunk,
          .by_chunk = true,
          .n_slots = cap,
          .from_span = true,
          .probe = true};
}
inline AttendConfig Sliding(std::string name, int n_heads, int n_kv_heads, int d, int dv,
                            DType dtype, DType compute, int window) {
  return {.name = std::move(name),
          .n_heads = n_heads,
          .n_kv_heads = n_kv_heads,
          .head_dim = d,
          .value_head_dim = dv,
          .dtype = dtype,
          .compute_dtype = compute,
          .wave_span = kBlockSlots,
          .window = window};
}
inline AttendConfig Full(std::string name, int n_heads, int n_kv_heads, int d, int dv, DType dtype,
                         DType compute) {
  return {.name = std::move(name),
          .n_heads = n_heads,
          .n_kv_heads = n_kv_heads,
          .head_dim = d,
          .value_head_dim = dv,
          .dtype = dtype,
          .compute_dtype = compute,
          .wave_span = 0};
}

}  // namespace ovq::kernels::test
