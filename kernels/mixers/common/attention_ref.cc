#include "kernels/mixers/common/attention_ref.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

namespace ovq {

double DotSlotRef(const float* q, const void* keys, DType dtype, int head_dim, int slot) {
  std::vector<float> key(static_cast<size_t>(head_dim));
  LoadKey(keys, dtype, head_dim, slot, key.data());
  double sum = 0;
  for (int i = 0; i < head_dim; ++i) sum += static_cast<double>(q[i]) * key[i];
  return sum;
}

void AttendHeadsRef(const AttentionShape& shape, const AttentionRows& rows, int64_t row,
                    int kv_head, const std::vector<SlotRef>& slots, DType dtype) {
  const int dv = shape.value_head_dim;
  std::vector<double> scores(slots.size()), sum(static_cast<size_t>(dv));
  std::vector<float> value(static_cast<size_t>(dv));
  for (int head = kv_head * shape.group(); head < (kv_head + 1) * shape.group(); ++head) {
    const float* q = rows.q + row * rows.stride + int64_t{head} * shape.head_dim;
    for (size_t i = 0; i < slots.size(); ++i) {
      scores[i] =
          DotSlotRef(q, slots[i].keys, dtype, shape.head_dim, slots[i].slot) + slots[i].bias;
    }
    const double highest = *std::max_element(scores.begin(), scores.end());
    std::fill(sum.begin(), sum.end(), 0.0);
    double weight_sum = 0;
    for (size_t i = 0; i < slots.size(); ++i) {
      const double weight = std::exp(scores[i] - highest);
      weight_sum += weight;
      LoadValue(slots[i].values, dtype, dv, ValueStride(dv), slots[i].slot, value.data());
      for (int c = 0; c < dv; ++c) sum[c] += weight * value[c];
    }
    const int64_t begin = (row * shape.n_heads + head) * dv;
    for (int c = 0; c < dv; ++c) {
      const auto out = static_cast<float>(sum[c] / weight_sum);
      if (rows.out_dtype == DType::kBF16) {
        static_cast<BF16*>(rows.out)[begin + c] = RoundToBF16(out);
      } else {
        static_cast<float*>(rows.out)[begin + c] = out;
      }
    }
  }
}

}  // namespace ovq
