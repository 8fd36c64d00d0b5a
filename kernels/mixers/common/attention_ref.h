// The ground truth of softmax attention: one query over a list of slots, in double.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/common/tensor.h"
#include "kernels/mixers/common/attention.h"
#include "kernels/mixers/common/block_attention.h"

namespace ovq {

struct SlotRef {
  const void* keys;  // the block it is in
  const void* values;
  int slot;
  double bias;  // added to the score
};

// q . key of a slot.
double DotSlotRef(const float* q, const void* keys, DType dtype, int head_dim, int slot);

// out[value_head_dim] = sum of softmax(q . key + bias) value.
void AttendSlotsRef(const float* q, std::span<const SlotRef> slots, DType dtype, int head_dim,
                    int value_head_dim, float* out);

// Element (row, query head) of rows.out.
void WriteOutputRef(const AttentionShape& shape, const AttentionRows& rows, int64_t row, int head,
                    const float* value);

}  // namespace ovq
