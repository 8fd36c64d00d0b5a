// Benchmark of a whole model on CUDA: decode batches, chunk updates and prefill.
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
  CudaModelBench(const model::LanguageModel& model, kernels::DeviceContext& context,
                 const Scale& scale, const Ceilings& ceilings, Report& report);

  // Reports whether whole-prompt and token-by-token runs agree in every bit.
  bool SplitKeepsEveryBit();
  void Prefill();
  void Decode();
  void ChunkUpdates();
  // Runs the last step of the prompts, and a decode batch of each number of sessions, in the
  // profiler's range.
  void Profile(bool prefill, bool decode);

 private:
  // Use of a batch's logits: none computed, computed and left, or a token drawn from each.
  enum class Logits : uint8_t { kNone, kLeft, kDrawnFrom };
  struct BatchTime {
    double device;  // seconds between GPU events around the batch, including sampling
    double wall;    // seconds until the host knows that the batch is done
  };

  // Device seconds of every step of n prompts that are prefilled together; keeps the state of one.
  std::vector<double> PrefillPrompts(int n, bool profile_last = false);
  void MakeSessions(int n);  // with the state that was kept; without one a prompt is prefilled
  void DecodeSessions(int n, size_t state_bytes);
  // Runs rows_each random tokens for each session i from position begin[i] on.
  BatchTime Step(std::span<const int64_t> begin, int64_t rows_each, Logits wanted);
  void Draw(std::span<const int64_t> begin, kernels::TensorView logits);
  std::vector<float> ComputeLogits(const kernels::Buffer& state, std::span<const int32_t> tokens,
                                   int64_t begin);
  // Device seconds of `n_steps` decode batches, session i's from position begin[i] on.
  std::vector<double> TimeDecode(std::vector<int64_t> begin, int64_t n_steps);
  std::vector<int64_t> SpreadPhases(int n) const;
  double LinearFlops() const;  // of one token, without the head

  const model::LanguageModel& model_;
  kernels::DeviceContext& context_;
  const Scale& scale_;
  const Ceilings& ceilings_;
  Report& report_;
  Meter meter_;
  std::mt19937 random_{3};
  kernels::Buffer prefilled_;  // state of one session after its prompt
  std::vector<kernels::Buffer> sessions_;
  std::vector<model::Sampler> samplers_;  // one for each session
  model::LogitsReader reader_;
};

}  // namespace ovq::bench
