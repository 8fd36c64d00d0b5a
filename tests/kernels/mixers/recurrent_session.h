// Runs tokens of one session through a recurrent mixer's kernel, without projections.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "kernels/mixers/mixer.h"
#include "tests/device_tests.h"

namespace ovq::test {

// A batch of one session from position 0 on, whose state is `state`.
class SessionBatch {
 public:
  SessionBatch(DeviceContext& context, int32_t n_tokens, const DeviceArray<float>& state)
      : token_begin_{0, n_tokens},
        base_(reinterpret_cast<std::byte*>(state.data())),
        staged_(StageBatch(context,
                           {.token_begin = token_begin_,
                            .start_pos = start_,
                            .slot_cap = cap_,
                            .state = {&base_, 1}},
                           {})) {}
  const BatchSequences& seqs() const { return staged_.seqs; }

 private:
  std::vector<int32_t> token_begin_;
  std::vector<int64_t> start_ = {0};
  std::vector<int32_t> cap_ = {2};
  std::byte* base_;
  StagedBatch staged_;
};

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

}  // namespace ovq::test
