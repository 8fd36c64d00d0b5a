// Test helpers for recurrences: batches over sequences with states, and inputs of their kinds.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "kernels/mixers/mixer.h"
#include "tests/device_tests.h"

namespace ovq::kernels::test {

// Sequences of a batch: numbers of tokens, first positions and states.
struct Sequences {
  std::vector<int32_t> lengths;
  std::vector<int64_t> starts;
  std::vector<std::vector<float>> states;
};
struct Result {
  std::vector<float> y;
  std::vector<std::vector<float>> states;
};

// Runs fn(context, seqs) with the states in device memory; fn returns y.
template <class Fn>
Result RunBatch(DeviceContext& context, const Sequences& sequences, Fn fn) {
  std::vector<int32_t> token_begin{0};
  for (int32_t n : sequences.lengths) token_begin.push_back(token_begin.back() + n);
  std::vector<DeviceArray<float>> states;
  std::vector<std::byte*> bases;
  for (const std::vector<float>& state : sequences.states) states.emplace_back(context, state);
  for (const DeviceArray<float>& state : states) {
    bases.push_back(reinterpret_cast<std::byte*>(state.data()));
  }
  const std::vector<int32_t> caps(sequences.lengths.size(), 2);
  const StagedBatch batch = StageBatch(
      context,
      {.token_begin = token_begin, .start_pos = sequences.starts, .slot_cap = caps, .state = bases},
      {});
  Result result{fn(batch.seqs), {}};
  for (const DeviceArray<float>& state : states) result.states.push_back(state.Read());
  return result;
}

inline std::vector<float> TokenRows(const std::vector<float>& x, int64_t begin, int64_t end,
                                    int64_t width) {
  return {x.begin() + begin * width, x.begin() + end * width};
}

// Scales every n elements to a vector of unit length.
inline std::vector<float> UnitVectors(std::vector<float> x, size_t n) {
  for (size_t begin = 0; begin < x.size(); begin += n) {
    double squares = 0;
    for (size_t i = begin; i < begin + n; ++i) squares += static_cast<double>(x[i]) * x[i];
    for (size_t i = begin; i < begin + n; ++i) {
      x[i] = static_cast<float>(x[i] / std::sqrt(squares));
    }
  }
  return x;
}

// Random numbers between 0 and 1.
inline std::vector<float> Gates(size_t n, uint64_t seed) {
  std::vector<float> gates = RandomNormal(n, seed);
  for (float& gate : gates) gate = 1 / (1 + std::exp(-gate));
  return gates;
}

// Instruction sets with fused multiply-add: with one order of summation they give the same bits.
inline std::vector<int64_t> FusedHighwayTargets() {
  std::vector<int64_t> targets;
  for (int64_t target : HighwayTargets()) {
    if (HighwayTargetName(target).starts_with("AVX")) targets.push_back(target);
  }
  return targets;
}

inline std::vector<float> Magnitudes(std::vector<float> x) {
  for (float& value : x) value = std::abs(value);
  return x;
}

}  // namespace ovq::kernels::test
