// The ground truth of softmax attention: one query over a list of slots, in double.
#pragma once

#include <cstdint>
#include <vector>

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

// out[value_head_dim] = sum of softmax(q . key + bias) value over the slots.
void AttendSlotsRef(const float* q, const std::vector<SlotRef>& slots, DType dtype, int head_dim,
                    int value_head_dim, float* out);

// rows.out of a row for the query heads of kv_head: sum of softmax(q . key + bias) value over
// slots.
void AttendHeadsRef(const AttentionShape& shape, const AttentionRows& rows, int64_t row,
                    int kv_head, const std::vector<SlotRef>& slots, DType dtype);

// One token of one key/value head.
struct TokenRef {
  int sequence;
  std::byte* session;
  int kv_head;
  int64_t row;
  int64_t position;
};
// Calls fn for every token of a step and every head, in the order of each sequence.
template <class Fn>
void ForEachTokenRef(const StepSeqs& seqs, int n_kv_heads, Fn&& fn) {
  for (int s = 0; s < seqs.n_seqs(); ++s) {
    for (int32_t i = 0; i < seqs.rows_of(s); ++i) {
      for (int h = 0; h < n_kv_heads; ++h) {
        fn(TokenRef{s, seqs.state[s], h, seqs.row_begin[s] + i, seqs.start_pos[s] + i});
      }
    }
  }
}

}  // namespace ovq
