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

void AttendSlotsRef(const float* q, const std::vector<SlotRef>& slots, DType dtype, int head_dim,
                    int value_head_dim, float* out) {
  std::vector<double> scores;
  for (const SlotRef& slot : slots) {
    scores.push_back(DotSlotRef(q, slot.keys, dtype, head_dim, slot.slot) + slot.bias);
  }
  const double highest = *std::max_element(scores.begin(), scores.end());
  std::vector<double> sum(static_cast<size_t>(value_head_dim));
  std::vector<float> value(static_cast<size_t>(value_head_dim));
  double weight_sum = 0;
  for (size_t i = 0; i < slots.size(); ++i) {
    const double weight = std::exp(scores[i] - highest);
    weight_sum += weight;
    LoadValue(slots[i].values, dtype, value_head_dim, ValueStride(value_head_dim), slots[i].slot,
              value.data());
    for (int c = 0; c < value_head_dim; ++c) sum[c] += weight * value[c];
  }
  for (int c = 0; c < value_head_dim; ++c) out[c] = static_cast<float>(sum[c] / weight_sum);
}

void AttendHeadsRef(const AttentionShape& shape, const AttentionRows& rows, int64_t row,
                    int kv_head, const std::vector<SlotRef>& slots, DType dtype) {
  std::vector<float> out(static_cast<size_t>(shape.value_head_dim));
  for (int head = kv_head * shape.group(); head < (kv_head + 1) * shape.group(); ++head) {
    AttendSlotsRef(rows.q + row * rows.stride + int64_t{head} * shape.head_dim, slots, dtype,
                   shape.head_dim, shape.value_head_dim, out.data());
    const int64_t begin = (row * shape.n_heads + head) * shape.value_head_dim;
    for (int c = 0; c < shape.value_head_dim; ++c) {
      if (rows.out_dtype == DType::kBF16) {
        static_cast<BF16*>(rows.out)[begin + c] = RoundToBF16(out[c]);
      } else {
        static_cast<float*>(rows.out)[begin + c] = out[c];
      }
    }
  }
}

}  // namespace ovq
