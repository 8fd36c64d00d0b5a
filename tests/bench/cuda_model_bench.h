// Decode steps, chunk updates and prefill of a whole model on CUDA.
#pragma once

#include <cstdint>
#include <random>
#include <span>
#include <vector>

#include "model/language_model.h"
#include "model/logits_reader.h"
#include "model/sampler.h"
#include "tests/bench/cuda_report.h"

namespace ovq::bench {

class CudaModelBench {
 public:
  CudaModelBench(const LanguageModel& model, DeviceContext& context, const Scale& scale,
                 const Ceilings& ceilings, Report& report);

  // False if a whole prompt and single steps differ in one bit.
  bool SplitKeepsEveryBit();
  // Whole prompts; keeps a state for the decode steps.
  void Prefill();
  void Decode();
  void ChunkUpdates();

 private:
  // What is done with a step's logits: not asked for, left where they are, a token drawn of each.
  enum class Logits : uint8_t { kNone, kLeft, kDrawnFrom };
  struct BatchTime {
    double device;  // seconds between events around the step, its draws included
    double wall;    // seconds until the host knows that it is done
  };

  void MakeSessions(int n);  // with the state that Prefill kept
  // The same number of rows for each of the first n sessions, of random tokens, session i's from
  // begin[i] on.
  BatchTime Step(std::span<const int64_t> begin, int64_t rows_each, Logits wanted);
  void Draw(std::span<const int64_t> begin, TensorView logits);
  std::vector<float> ComputeLogits(const Buffer& state, std::span<const int32_t> tokens,
                                   int64_t begin);
  // Device seconds of `n_steps` decode steps, session i's from begin[i] on.
  std::vector<double> TimeDecode(std::vector<int64_t> begin, int64_t n_steps);
  std::vector<int64_t> SpreadPhases(int n) const;
  double LinearFlops() const;  // of one token, without the head

  const LanguageModel& model_;
  DeviceContext& context_;
  const Scale& scale_;
  const Ceilings& ceilings_;
  Report& report_;
  Meter meter_;
  std::mt19937 random_{3};
  std::vector<std::byte> prefilled_;  // one session's range after Prefill
  std::vector<Buffer> sessions_;
  std::vector<Sampler> samplers_;  // of each session
  LogitsReader reader_;
};

}  // namespace ovq::bench
