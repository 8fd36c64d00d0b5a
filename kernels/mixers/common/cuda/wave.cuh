// Which of a sequence's rows lie in a wave (attend.h), and what the update at a span's end needs.
#pragma once

#include <cstdint>

#include "kernels/common/cuda/shared.cuh"
#include "kernels/mixers/mixer.h"

namespace ovq::cuda {

// The rows of one sequence in a wave: the positions of one span.
struct WaveRows {
  int64_t span;      // floor(t / wave_span) of them all
  int64_t position;  // of the first
  int32_t row;       // of the first
  int32_t n;         // 0: this wave has none of the sequence
  bool fills_span;   // the last one is the span's last position
};

__device__ inline WaveRows RowsOfWave(const DeviceSeqs& seqs, int s, int32_t wave_span, int wave) {
  const int64_t start = seqs.start_pos[s];
  const int32_t first_row = seqs.row_begin[s];
  const int64_t end = start + (seqs.row_begin[s + 1] - first_row);
  WaveRows rows;
  rows.span = start / wave_span + wave;
  const int64_t span_begin = rows.span * wave_span, span_end = span_begin + wave_span;
  rows.position = start > span_begin ? start : span_begin;
  const int64_t last = end < span_end ? end : span_end;
  rows.row = first_row + static_cast<int32_t>(rows.position - start);
  rows.n = last > rows.position ? static_cast<int32_t>(last - rows.position) : 0;
  rows.fills_span = rows.n > 0 && last == span_end;
  return rows;
}

// assignment[n] says where each of n keys goes. Gives the number of keys that go where key i does
// if it is the lowest of them, else 0, and sets next[i] to the key after it, -1 for the last.
__device__ inline int32_t LinkMembers(SharedPtr<const int32_t> assignment, int32_t n, int32_t i,
                                      SharedPtr<int32_t> next) {
  const int32_t mine = assignment[i];
  int32_t after = -1, members = 1;
  for (int32_t j = n - 1; j > i; --j) {
    const int32_t other = assignment[j];
    if (other != mine) continue;
    after = j;
    ++members;
  }
  next[i] = after;
  for (int32_t j = 0; j < i; ++j) {
    const int32_t other = assignment[j];
    if (other == mine) return 0;
  }
  return members;
}

// A count stays at 2^32 - 1 once it is there. Gives the new one as the divisor of a mean.
__device__ inline float AddToCount(int32_t members, uint32_t* count, float* log_count) {
  const uint64_t sum = uint64_t{*count} + static_cast<uint32_t>(members);
  *count = sum < 0xffffffffu ? static_cast<uint32_t>(sum) : 0xffffffffu;
  const auto divisor = static_cast<float>(*count);
  *log_count = logf(divisor);
  return divisor;
}

}  // namespace ovq::cuda
