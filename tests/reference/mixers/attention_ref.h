// The reference of softmax attention in double, from the papers' equations. It shares the state's
// layout with the other devices but no decisions or arithmetic.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/mixers/common/attend.h"

namespace ovq::kernels {

struct SlotRef {
  const void* keys;  // the slot's block
  const void* values;
  int slot;
  double bias;  // added to the score
};

// q[head_dim] . key of a slot.
double DotSlotRef(const float* q, const void* keys, DType dtype, int head_dim, int slot);

// out[value_head_dim] = sum of softmax(q . key + bias) value over the slots.
void AttendSlotsRef(const float* q, const std::vector<SlotRef>& slots, DType dtype, int head_dim,
                    int value_head_dim, float* out);

// One token, seen by one key/value head.
struct TokenRef {
  int sequence;
  std::byte* session;
  int kv_head;
  int64_t row;
  int64_t position;
};
// Calls fn for every token of a batch and every kv head, in the order of each sequence.
template <class Fn>
void ForEachTokenRef(const AttentionArgs& args, Fn&& fn) {
  const BatchSequences& seqs = args.seqs;
  for (int s = 0; s < seqs.n_seqs(); ++s) {
    for (int32_t i = 0; i < seqs.sequence_length(s); ++i) {
      for (int h = 0; h < args.blocks.shape.n_kv_heads; ++h) {
        fn(TokenRef{s, seqs.state[s], h, seqs.token_begin[s] + i, seqs.start_pos[s] + i});
      }
    }
  }
}

const float* KeyRef(const AttentionArgs& args, const TokenRef& token);  // [head_dim]
// ln count of dictionary slot j and, with a variance, variance_scale times the variance of its
// keys.
double BiasRef(const AttentionArgs& args, const TokenRef& token, int64_t j);
// Dictionary slot j, with its BiasRef where slots have one; recent slot i, counted from the origin.
SlotRef DictionarySlotRef(const AttentionArgs& args, const TokenRef& token, int64_t j);
SlotRef RecentSlotRef(const AttentionArgs& args, const TokenRef& token, int64_t i);

// Writes a key and the token's value to recent slot i.
void StoreTokenRef(const AttentionArgs& args, const TokenRef& token, const float* key, int64_t i);

// Writes tokens.out of the token for all query heads of its kv head.
void AttendTokenRef(const AttentionArgs& args, const TokenRef& token,
                    const std::vector<SlotRef>& slots);

// The inputs of a mean's random numbers. `row` is the slot's number, or a stand-in for it.
struct MeanKeyRef {
  int layer, kv_head;
  uint32_t row;
  bool is_value;
  int64_t chunk;
};
// Stores a key's or value's mean as a slot of a block with that many channels (values: with
// padding), rounded stochastically unless float32.
void StoreMeanRef(const std::vector<double>& mean, const MeanKeyRef& key, DType dtype, void* block,
                  int channels, int slot);

// Variants of the merge.
struct MergeRuleRef {
  bool normalizes_keys = false, normalizes_values = false;  // mean / max(|mean|, 1e-12)
  // Delta rule, [chunk_len][value_head_dim]: value += sum (member - prediction) / count.
  const std::vector<std::vector<float>>* predictions = nullptr;
};
// Updates dictionary slot j at the end of the token's chunk from the chunk's members i of it:
//   count_j += their number,  mean_j += sum_i (member_i - mean_j) / count_j
// for its value, and for its key unless that is not kept in the state. Returns the count.
uint32_t MergeSlotRef(const AttentionArgs& args, const TokenRef& token, int64_t j,
                      const std::vector<int>& members, const MergeRuleRef& rule = {});

// The references of AttendCpu: of blocks without a dictionary, and of those with one.
void SoftmaxAttentionRef(const AttentionArgs& args);
void OvqAttentionRef(const AttentionArgs& args);

}  // namespace ovq::kernels
