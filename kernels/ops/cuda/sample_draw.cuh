// Draws from a row of logits [vocab] on CUDA with one thread block, in the order given at RowDraw
// in sample.h.
//
// Weights. A candidate's weight w = exp((logit - best) / temperature), in (0, 1], is computed in
// double as on the CPU, and summed as the integer round(w 2^40), so that the bits of a sum do not
// depend on the order. The best token weighs 1, so a sum of weights is off by at most a share of
// vocab 2^-41. A token that weighs less than 2^-41 is never drawn (on the CPU: less than e^-60). So
// the two devices choose the same token unless the random number or a filter's threshold falls
// within that distance of the border between two tokens.
#pragma once

#include <cuda_runtime.h>

#include <cfloat>
#include <cmath>
#include <cstdint>

#include "kernels/ops/cuda/sample_select.cuh"
#include "kernels/ops/sample.h"

namespace ovq::kernels::cuda {

inline constexpr double kNegligible = -60;  // a weight with this exponent or less counts as 0

// A RowDraw in the device's memory. Its lists lie one after another from `lists` on: seen ids, then
// (id, count), then (id, bits of the bias), then banned ids.
struct DeviceDraw {
  int64_t row;
  uint64_t random;  // its upper 53 bits are used
  int64_t lists;
  int32_t n_seen, n_generated, n_biased, n_banned;
  DrawParams params;
};
struct DeviceBest {
  int64_t row;
  int64_t n;    // at most vocab
  int64_t out;  // index of its first result
};
// A LogitsReading in the device's memory.
struct ReadTask {
  const float* logits;  // [n_rows, vocab]
  int32_t vocab, n_draws, n_tokens, n_bests;
  const DeviceDraw* draws;
  const int32_t* lists;
  const RowToken* tokens;
  const DeviceBest* bests;
  // The results.
  TokenLogit* drawn;    // [n_draws]
  float* token_logits;  // [n_tokens]
  TokenLogit* best;     // n of each request, in any order
  // Scratch, [n_blocks, vocab] each; the first two null where no draw needs them.
  float* adjusted;
  double* weights;
  int32_t* border;
};

__device__ inline float NoNan(float logit) { return std::isnan(logit) ? -INFINITY : logit; }
__device__ inline float Sane(float logit) { return fminf(NoNan(logit), FLT_MAX); }

// Ascends with the logit; equal for the two zeros.
__device__ inline unsigned AscendingKey(float logit) {
  const unsigned bits = __float_as_uint(NoNan(logit) + 0.0f);
  return bits >> 31 != 0 ? ~bits : bits | 0x80000000u;
}
__device__ inline float FromAscendingKey(unsigned key) {
  return __uint_as_float(key >> 31 != 0 ? key ^ 0x80000000u : ~key);
}

__device__ inline uint64_t FixedWeight(double weight) {
  return static_cast<uint64_t>(weight * 0x1p40 + 0.5);
}

struct RowRange {
  int32_t first_best;  // the lowest id of the highest logit
  float best, lowest;  // lowest: above minus infinity; best if there is none
};

__device__ inline RowRange FindRange(const float* row, int vocab) {
  uint64_t high = 0;  // key, then the lower id first
  uint64_t low = 0;   // of the lowest logit's key, complemented
  for (int id = static_cast<int>(threadIdx.x); id < vocab; id += kSampleThreads) {
    const unsigned key = AscendingKey(row[id]);
    const uint64_t at = uint64_t{key} << 32 | ~static_cast<unsigned>(id);
    high = at > high ? at : high;
    if (FromAscendingKey(key) > -INFINITY && ~key > low) low = ~key;
  }
  high = BlockMax(high);
  low = BlockMax(low);
  RowRange range;
  range.first_best = static_cast<int32_t>(~static_cast<unsigned>(high));
  range.best = FromAscendingKey(static_cast<unsigned>(high >> 32));
  range.lowest = low != 0 ? FromAscendingKey(~static_cast<unsigned>(low)) : range.best;
  return range;
}

// The order in which a filter keeps candidates.
struct CandidateOrder {
  // kCount: by logit, each counts 1; kLogit, kTypical: each counts its weight.
  enum class RankBy { kCount, kLogit, kTypical };
  const float* row;
  double* weights;  // 0: no candidate; null: all tokens are candidates
  double best, scale;
  double bins_per_unit;
  double mean = 0;  // of the exponents, kTypical
  RankBy by = RankBy::kCount;

  __device__ bool Has(int32_t id) const { return weights == nullptr || weights[id] > 0; }
  // ln of the weight.
  __device__ double Exponent(int32_t id) const {
    return (static_cast<double>(Sane(row[id])) - best) * scale;
  }
  __device__ double Rank(int32_t id) const {
    return by == RankBy::kTypical ? fabs(Exponent(id) - mean) : -Exponent(id);
  }
  __device__ int Bin(int32_t id) const {
    const double bin = Rank(id) * bins_per_unit;  // infinite for a logit of minus infinity
    return bin < kBins - 1 ? static_cast<int>(bin) : kBins - 1;
  }
  __device__ int key_bits() const { return by == RankBy::kTypical ? 64 : 32; }
  __device__ uint64_t Key(int32_t id) const {
    // The bits of a number that is not negative ascend with it.
    if (by == RankBy::kTypical) return static_cast<uint64_t>(__double_as_longlong(Rank(id)));
    return ~AscendingKey(by == RankBy::kCount ? row[id] : Sane(row[id]));
  }
  __device__ uint64_t Measure(int32_t id) const {
    return by == RankBy::kCount ? 1 : FixedWeight(weights[id]);
  }
};

// The order of a row's tokens by logit. Those farther than kNegligible below the best share the
// last bin.
__device__ inline CandidateOrder MakeOrder(const float* row, const RowRange& range, double* weights,
                                           double scale) {
  const double best = Sane(range.best);
  const double width = (best - static_cast<double>(Sane(range.lowest))) * scale;
  return {row, weights, best, scale, width > 0 ? kBins / fmin(width, -kNegligible) : 0};
}

// Keeps the fewest first candidates whose measures reach target(sum of all).
template <class Target>
__device__ inline void Keep(const CandidateOrder& order, int vocab, int32_t* border,
                            Target target) {
  const Place last = SelectLast(order, vocab, target, border);
  ForEach(vocab, [&](int id) {
    if (order.Has(id) && !Reaches(order, id, last)) order.weights[id] = 0;
  });
}

__device__ inline void KeepMass(const CandidateOrder& order, int vocab, int32_t* border,
                                double mass) {
  Keep(order, vocab, border, [mass](uint64_t total) -> uint64_t {
    const auto target = static_cast<uint64_t>(ceil(mass * static_cast<double>(total)));
    return target < total ? target : total;
  });
}

// The mean exponent: |ln p + entropy| in the definition equals the distance of a token's exponent
// from it.
__device__ inline double MeanExponent(const CandidateOrder& order, int vocab) {
  double sum = 0, weighted = 0;
  for (int id = static_cast<int>(threadIdx.x); id < vocab; id += kSampleThreads) {
    if (!order.Has(id)) continue;
    sum += order.weights[id];
    weighted += order.weights[id] * order.Exponent(id);
  }
  return BlockSum(weighted) / BlockSum(sum);
}

__device__ inline void KeepAboveMinP(double* weights, int vocab, double min_p) {
  double best = 0;
  for (int id = static_cast<int>(threadIdx.x); id < vocab; id += kSampleThreads) {
    best = weights[id] > best ? weights[id] : best;
  }
  const double floor = BlockMax(best) * min_p;
  ForEach(vocab, [&](int id) {
    if (weights[id] < floor) weights[id] = 0;
  });
}

// The first id at which the sum of weights, by ascending id, exceeds random / 2^64 of the total.
__device__ inline int32_t Pick(const double* weights, int vocab, uint64_t random) {
  const int stretch =
      (vocab + 32 * kSampleWarps - 1) / (32 * kSampleWarps) * 32;  // tokens per warp
  const int begin = Warp() * stretch;
  const int end = min(begin + stretch, vocab);
  uint64_t own = 0;
  for (int id = begin + Lane(); id < end; id += 32) own += FixedWeight(weights[id]);
  own = __shfl_sync(kAllLanes, WarpPrefixSum(own), 31);
  const SharedPtr<uint64_t> sums = DynamicShared<uint64_t>(kPartBytes);
  if (Lane() == 0) sums[Warp()] = own;
  __syncthreads();
  uint64_t before = 0, total = 0;
  for (int warp = 0; warp < kSampleWarps; ++warp) {
    const uint64_t sum = sums[warp];
    if (warp < Warp()) before += sum;
    total += sum;
  }
  const uint64_t target = __umul64hi(random >> 11 << 11, total);  // below total
  const SharedPtr<uint64_t> chosen = DynamicShared<uint64_t>(kChosenBytes);
  if (before <= target && target < before + own) {  // true in one warp
    for (int id = begin + Lane();; id += 32) {
      const uint64_t through = before + WarpPrefixSum(id < end ? FixedWeight(weights[id]) : 0);
      const unsigned beyond = __ballot_sync(kAllLanes, through > target);
      if (beyond != 0) {
        if (Lane() == __ffs(static_cast<int>(beyond)) - 1) chosen[0] = static_cast<uint64_t>(id);
        break;
      }
      before = __shfl_sync(kAllLanes, through, 31);
    }
  }
  __syncthreads();
  const uint64_t id = chosen[0];
  __syncthreads();
  return static_cast<int32_t>(id);
}

// The row with penalties, biases and bans applied: the row itself, or a copy in scratch memory.
__device__ inline const float* Adjust(const ReadTask& task, const DeviceDraw& draw,
                                      const float* row) {
  if (draw.n_seen + draw.n_generated + draw.n_biased + draw.n_banned == 0) return row;
  const int32_t* list = task.lists + draw.lists;
  float* adjusted = task.adjusted + int64_t{blockIdx.x} * task.vocab;
  const DrawParams& params = draw.params;
  ForEach(task.vocab, [&](int id) { adjusted[id] = row[id]; });
  ForEach(draw.n_seen, [&](int i) {
    const float logit = adjusted[list[i]];
    adjusted[list[i]] =
        logit > 0 ? logit / params.repetition_penalty : logit * params.repetition_penalty;
  });
  list += draw.n_seen;
  ForEach(draw.n_generated, [&](int i) {
    const auto count = static_cast<float>(list[2 * i + 1]);
    adjusted[list[2 * i]] -= params.presence_penalty + params.frequency_penalty * count;
  });
  list += 2 * draw.n_generated;
  ForEach(draw.n_biased, [&](int i) { adjusted[list[2 * i]] += __int_as_float(list[2 * i + 1]); });
  list += 2 * draw.n_biased;
  ForEach(draw.n_banned, [&](int i) { adjusted[list[i]] = -INFINITY; });
  return adjusted;
}

// The best token. Without a finite logit it is token 0, which may be banned.
__device__ inline int32_t Greedy(const RowRange& range, int vocab, const int32_t* banned,
                                 int n_banned) {
  int32_t id = range.first_best;
  for (int i = 0; i < n_banned; ++i) {
    if (banned[i] != id || id + 1 == vocab) continue;
    ++id;
    i = -1;  // restart: the list is unordered
  }
  return id;
}

// row: after Adjust.
__device__ inline int32_t DrawToken(const ReadTask& task, const DeviceDraw& draw,
                                    const float* row) {
  const int vocab = task.vocab;
  const DrawParams& params = draw.params;
  const RowRange range = FindRange(row, vocab);
  if (params.temperature == 0 || !(range.best > -INFINITY)) {
    const int32_t* banned =
        task.lists + draw.lists + draw.n_seen + 2 * draw.n_generated + 2 * draw.n_biased;
    return Greedy(range, vocab, banned, draw.n_banned);
  }
  double* weights = task.weights + int64_t{blockIdx.x} * vocab;
  int32_t* border = task.border + int64_t{blockIdx.x} * vocab;
  CandidateOrder order =
      MakeOrder(row, range, weights, 1.0 / static_cast<double>(params.temperature));
  ForEach(vocab, [&](int id) {
    const double exponent = order.Exponent(id);
    weights[id] = exponent > kNegligible ? exp(exponent) : 0;
  });
  if (params.top_k > 0 && params.top_k < vocab) {
    const auto k = static_cast<uint64_t>(params.top_k);
    Keep(order, vocab, border, [k](uint64_t total) -> uint64_t { return k < total ? k : total; });
  }
  if (params.typical_p < 1) {
    order.by = CandidateOrder::RankBy::kTypical;
    order.mean = MeanExponent(order, vocab);
    KeepMass(order, vocab, border, params.typical_p);
  }
  if (params.top_p < 1) {
    order.by = CandidateOrder::RankBy::kLogit;
    KeepMass(order, vocab, border, params.top_p);
  }
  if (params.min_p > 0) KeepAboveMinP(weights, vocab, params.min_p);
  return Pick(weights, vocab, draw.random);
}

}  // namespace ovq::kernels::cuda
