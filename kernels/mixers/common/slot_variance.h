// The variance of a slot's keys in its score (ovq.variance). A slot of c keys k_i of unit norm with
// the mean D stands for sum_i exp(q . k_i) = c exp(q . D) mean_i exp(q . (k_i - D)). To second
// order, with keys that are spread evenly in all d directions, the logarithm of that is
//   q . D + ln c + |q|^2 s / (2 d),  s = mean_i |k_i - D|^2 = 1 - |D|^2
// so the last term, times a factor, is one number a slot, which is stored with ln c.
#pragma once

#include <cstdint>

#include "kernels/mixers/common/attend.h"
#include "kernels/mixers/common/slots.h"

namespace ovq::kernels {

// variance_scale (1 - |key|^2) of a slot of `count` keys, from its mean key as stored; 0 without a
// scale, and for one key, whose norm is 1 but for rounding.
template <class T>
constexpr float VarianceBias(const AttentionBlocks& blocks, int kv_head, uint32_t count,
                             const SlotRow<T>& key) {
  if (blocks.variance_scale == nullptr || count < 2) return 0;
  float squares = 0;
  for (int c = 0; c < blocks.shape.head_dim; ++c) {
    const float x = key[c];
    squares += x * x;
  }
  // Rounding can make a mean longer than its keys. NaN, which only broken weights give, stays.
  const float variance = 1 - squares;
  return variance < 0 ? 0 : blocks.variance_scale[kv_head] * variance;
}

}  // namespace ovq::kernels
