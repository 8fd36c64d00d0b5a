// The ground truth of softmax attention in double, from the paper's equations. It shares the layout
// of the state with the other devices and nothing that decides or computes.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/mixers/common/attend.h"

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

// One token of one key/value head.
struct TokenRef {
  int sequence;
  std::byte* session;
  int kv_head;
  int64_t row;
  int64_t position;
};
// Calls fn for every token of a batch and every head, in the order of each sequence.
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
// Slot j of the dictionary, with ln count where slots have a bias; slot i of the recent tokens,
// counted from their origin.
SlotRef DictionarySlotRef(const AttentionArgs& args, const TokenRef& token, int64_t j);
SlotRef RecentSlotRef(const AttentionArgs& args, const TokenRef& token, int64_t i);

// Writes a key and the token's value to recent slot i.
void StoreTokenRef(const AttentionArgs& args, const TokenRef& token, const float* key, int64_t i);

// rows.out of the token for the query heads of its kv head.
void AttendTokenRef(const AttentionArgs& args, const TokenRef& token,
                    const std::vector<SlotRef>& slots);

// What a mean's random numbers are drawn for; row is a centroid's number, or what stands for it.
struct MeanKeyRef {
  int layer, kv_head;
  uint32_t row;
  bool is_value;
  int64_t chunk;
};
// A key's or value's mean as a slot of a block with so many channels (values: with their padding),
// rounded stochastically where that is not float32.
void StoreMeanRef(const std::vector<double>& mean, const MeanKeyRef& key, DType dtype, void* block,
                  int channels, int slot);

// What else a mean may become.
struct MergeRuleRef {
  bool normalizes_keys = false, normalizes_values = false;  // mean / max(|mean|, 1e-12)
  // Delta rule, [chunk's tokens][value_head_dim]: value += sum (member - prediction) / count.
  const std::vector<std::vector<float>>* predictions = nullptr;
};
// A dictionary slot at the end of the token's chunk, from the chunk's members of it:
//   count += their number,  mean += sum (member - mean) / count
// for its value, and its key unless that is not kept in the state; gives the count.
uint32_t MergeSlotRef(const AttentionArgs& args, const TokenRef& token, int64_t j,
                      const std::vector<int>& members, const MergeRuleRef& rule = {});

}  // namespace ovq
