// Batch: the tokens of several sequences, end to end, that one forward pass reads.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/mixers/mixer.h"

namespace ovq::model {

// Example: one sequence decodes token 7 at position 9, another prefills {3, 4, 5} from position 0.
//   token_ids     7 | 3 4 5
//   token_begin     0, 1, 4
//   start_pos     9, 0
//   logits_indices    0, 3
struct Batch {
  std::vector<int32_t> token_ids;       // [n_tokens], each in [0, vocab)
  std::vector<int32_t> token_begin{0};  // [n_seqs + 1]
  std::vector<int64_t> start_pos;       // [n_seqs]
  std::vector<int32_t> slot_cap;        // [n_seqs]
  std::vector<std::byte*> state;        // [n_seqs], with memory for all tokens of the batch
  std::vector<int32_t> logits_indices;  // ascending indices of the tokens whose logits are wanted

  int n_tokens() const { return token_begin.back(); }
  int n_seqs() const { return static_cast<int>(start_pos.size()); }
  // Every sequence has one token and wants its logits.
  bool is_decode() const;
  // Appends one sequence's tokens; wants the logits of the last `n_logits` of them.
  void Add(std::span<const int32_t> tokens, int64_t start, int32_t cap, std::byte* base,
           int n_logits);
  kernels::BatchSequences seqs() const;
};

// A copy of a decode batch with unused tokens at its end, few in proportion. So there are few
// sizes: CUDA records each once as a graph and replays it.
Batch PadBatch(const Batch& batch);
// Rounds the bounds up to powers of two, so that many batches share a recording.
void RoundBounds(kernels::BatchSequences& seqs);

struct BatchWork {
  double bytes = 0;     // weights and states that the batch reads
  double products = 0;  // multiplications of its tokens with weights
  int n_layers = 0;
  int64_t n_expert_calls = 0;  // products of single experts, in all layers
  int n_answers = 1;           // sequences in the batch
};
// Predicts whether one CPU thread finishes a batch sooner than `n_threads` that share it. Each
// layer calls the other threads several times, they may have to be woken each time, and the threads
// that write the answers of the last batch need a core meanwhile.
bool IsFasterOnOneThread(const BatchWork& work, int n_threads);

}  // namespace ovq::model
