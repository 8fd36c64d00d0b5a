// The sequences of a batch: whose tokens it holds, their positions, and the tensors that its layers
// pass on.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/common/device.h"
#include "kernels/common/tensor.h"
#include "kernels/mixers/state.h"

namespace ovq::kernels {

// The number of live slots by one growth law: for every sequence at the beginning of each period
// that its tokens touch, and at the end of the last. In the device's memory; evaluated once a
// batch.
struct LiveSlots {
  const int32_t* slots = nullptr;  // [n_seqs][parts][stride]
  const int32_t* caps = nullptr;   // [n_seqs][parts], the most slots ever live: Growth::HeadSlotCap
  int32_t parts = 1;               // Growth::parts
  int32_t stride = 0;
  int32_t bound = 0;  // upper bound of all slots that this batch reaches

  // period is counted from the one that holds the sequence's first token.
  constexpr int32_t At(int sequence, int head, int64_t period) const {
    return slots[PartIndex(sequence, head) * stride + period];
  }
  constexpr int32_t HeadSlotCap(int sequence, int head) const {
    return caps[PartIndex(sequence, head)];
  }
  constexpr int64_t PartIndex(int sequence, int head) const {
    return int64_t{sequence} * parts + (parts == 1 ? 0 : head);
  }
};

// The arrays of a BatchSequences in the device's memory.
struct DeviceSequences {
  const int32_t* token_begin = nullptr;
  const int64_t* start_pos = nullptr;
  std::byte* const* state = nullptr;
  // [n_tokens]: start_pos of the token's sequence plus its index in it.
  const int64_t* positions = nullptr;
};

// The tokens of all sequences, end to end. The spans are host memory; kernels on a device read
// `device` and `live`. A batch that is replayed (DeviceContext::RunCaptured) is padded with
// sequences of one token whose state is null in both, and which kernels skip. For a replayed batch
// the host's spans hold only the shape (n_seqs, one token each, the bounds).
struct BatchSequences {
  std::span<const int32_t> token_begin;  // [n_seqs + 1]; lengths 2, 3, 4 -> 0, 2, 5, 9
  std::span<const int64_t> start_pos;    // [n_seqs] tokens consumed before this batch
  std::span<const int32_t> slot_cap;     // [n_seqs] the session's cap on the slots of growing parts
  std::span<std::byte* const>
      state;  // [n_seqs] session base pointers; memory is committed up to the batch's end
  DeviceSequences device = {};
  std::span<const LiveSlots> live = {};  // [laws of growth], by LayerState::growth
  int64_t end_bound = 0;                 // all positions are below it
  int32_t slot_cap_bound = 0;            // upper bound of slot_cap

  int n_seqs() const { return static_cast<int>(start_pos.size()); }
  int n_tokens() const { return token_begin.empty() ? 0 : token_begin.back(); }
  int32_t sequence_length(int sequence) const {
    return token_begin[sequence + 1] - token_begin[sequence];
  }
  int64_t end_pos(int sequence) const { return start_pos[sequence] + sequence_length(sequence); }
  int32_t max_sequence_length() const;  // of any sequence
  // Whether every sequence has one token. The host's positions must then not be read, as the
  // launches may be replayed at other ones.
  bool one_token_each() const;
};

// A batch is processed in waves where something happens between positions, e.g. at a chunk's end. A
// wave holds, for every sequence, the tokens whose positions lie in one span: wave 0 has the span
// of the sequence's first token, wave 1 the next, and so on. span 0: all tokens make one wave. A
// decode batch is one wave.
int CountWaves(const BatchSequences& seqs, int64_t span);

// The tokens of one sequence in one wave.
struct WaveTokens {
  int64_t begin, end;  // positions; none if begin >= end
  int64_t span_begin;  // 0 without spans
  int32_t row;         // index in the batch of the token at `begin`
};

constexpr WaveTokens TokensInWave(int64_t start, int32_t first_token, int32_t n_tokens,
                                  int32_t span, int wave) {
  WaveTokens tokens = {start, start + n_tokens, 0, first_token};
  if (span > 0) {
    tokens.span_begin = (start / span + wave) * span;
    if (tokens.begin < tokens.span_begin) tokens.begin = tokens.span_begin;
    if (tokens.end > tokens.span_begin + span) tokens.end = tokens.span_begin + span;
    tokens.row = first_token + static_cast<int32_t>(tokens.begin - start);
  }
  return tokens;
}

// One wave, as kernels see it.
struct DeviceWave {
  DeviceSequences seqs;
  int32_t index;
};
constexpr WaveTokens TokensInWave(const DeviceWave& wave, int sequence, int32_t span) {
  const int32_t row = wave.seqs.token_begin[sequence];
  return TokensInWave(wave.seqs.start_pos[sequence], row, wave.seqs.token_begin[sequence + 1] - row,
                      span, wave.index);
}

// Tensors that layers of a batch pass to later ones, e.g. the first layer's values. They lie in
// scratch memory, live as long as the batch and are never part of a session.
class BatchTensors {
 public:
  explicit BatchTensors(ScratchScope& scope) : scope_(scope) {}
  // Allocates a tensor of that name; each name once a batch.
  TensorView Put(std::string_view name, DType dtype, const Shape& shape);
  // Null data if no earlier layer has put it.
  TensorView Get(std::string_view name) const;

 private:
  ScratchScope& scope_;
  std::map<std::string, TensorView, std::less<>> tensors_;
};

// A batch whose arrays are in the device's memory.
struct StagedBatch {
  BatchSequences seqs;                      // with `device` and `live`
  std::vector<LiveSlots> live;              // storage of seqs.live
  std::span<const int32_t> token_ids;       // [n_tokens]
  std::span<const int32_t> logits_indices;  // [n_logits]
};

// Copies the arrays to the device in one transfer; valid until the next batch is staged. Bounds of
// `seqs` that are 0 are computed. growths: the laws of seqs.live, in this order.
StagedBatch StageBatch(DeviceContext& context, const BatchSequences& seqs,
                       std::span<const Growth> growths, std::span<const int32_t> token_ids = {},
                       std::span<const int32_t> logits_indices = {});

}  // namespace ovq::kernels
