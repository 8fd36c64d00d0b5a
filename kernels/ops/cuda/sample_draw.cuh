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

// A RowDraw in the device's memory. Its lists lie one after another from `lists` on: seen ids, then
// (id, count), then (id, bits of the bias), then banned ids. allowed: where the mask begins among
// the masks' words; -1 without one.
struct DeviceDraw {
  int64_t row;
  uint64_t random;  // its upper 53 bits are used
  int64_t lists;
  int64_t allowed;
  int32_t n_seen, n_generated, n_biased, n_banned;
  DrawParams params;
};
struct DeviceBest {
  int64_t row;
  int64_t n;        // at most the number of allowed tokens
  int64_t out;      // index of its first result
  int64_t allowed;  // as in DeviceDraw
};
// A LogitsReading in the device's memory.
struct ReadTask {
  const float* logits;  // [n_rows, vocab]
  int32_t vocab, n_draws, n_tokens, n_bests;
  const DeviceDraw* draws;
  const int32_t* lists;
  const uint32_t* masks;
  const RowToken* tokens;
  const DeviceBest* bests;
  // The results.
  TokenLogit* drawn;    // [n_draws]
  float* log_sum_exp;   // [n_draws], of masked draws only; null without any
  float* token_logits;  // [n_tokens]
  TokenLogit* best;     // n of each request, in any order
  // Scratch, [n_blocks, vocab] each; the first two null where nothing needs them.
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

__device__ inline bool IsAllowed(const uint32_t* allowed, int32_t id) {
  return (allowed[id / 32] >> (id % 32) & 1u) != 0;
}

__device__ inline uint64_t FixedWeight(double weight) {
  return static_cast<uint64_t>(weight * 0x1p40 + 0.5);
}

struct RowRange {
  int32_t first_best;  // the lowest id of the highest logit
  float best, lowest;  // lowest: above minus infinity; best if there is none
};

__device__ inline RowRange FindRange(const float* row, int vocab) {
  const auto thread = static_cast<int>(threadIdx.x);
  int first_best = thread;
  float best = -INFINITY, lowest = INFINITY;
  EachLoaded(
      thread, vocab, kSampleThreads, [&](int id) { return row[id]; },
      [&](int id, float logit) {
        if (logit > best) {
          best = logit;
          first_best = id;
        }
        if (logit > -INFINITY) lowest = fminf(lowest, logit);
      });
  // Key, then the lower id first.
  const uint64_t own = uint64_t{AscendingKey(best)} << 32 | ~static_cast<unsigned>(first_best);
  const uint64_t high = BlockMax(own);
  lowest = -BlockMax(-lowest);
  RowRange range;
  range.first_best = static_cast<int32_t>(~static_cast<unsigned>(high));
  range.best = FromAscendingKey(static_cast<unsigned>(high >> 32));
  range.lowest = lowest < INFINITY ? lowest : range.best;
  return range;
}

struct Candidate {
  float logit;
  double weight;  // 0: no candidate
};

// The order in which a filter keeps candidates.
struct CandidateOrder {
  // kCount: by logit, each counts 1; kLogit, kTypical: each counts its weight.
  enum class RankBy { kCount, kLogit, kTypical };
  const float* row;
  double* weights;  // null: all tokens are candidates
  double best, scale;
  double bins_per_unit;
  double mean = 0;  // of the exponents, kTypical
  RankBy by = RankBy::kCount;
  bool fresh = true;  // weights are not computed yet

  __device__ Candidate Load(int32_t id) const {
    return {row[id], fresh || weights == nullptr ? 1 : weights[id]};
  }
  // Computes the weight if that is to do.
  __device__ void Weigh(int32_t id, Candidate& candidate) const {
    if (!fresh || weights == nullptr) return;
    const double exponent = Exponent(candidate);
    candidate.weight = exponent > kNegligible ? exp(exponent) : 0;
    weights[id] = candidate.weight;
  }
  __device__ bool Has(const Candidate& candidate) const { return candidate.weight > 0; }
  // ln of the weight.
  __device__ double Exponent(const Candidate& candidate) const {
    return (static_cast<double>(Sane(candidate.logit)) - best) * scale;
  }
  __device__ double Rank(const Candidate& candidate) const {
    const double exponent = Exponent(candidate);
    return by == RankBy::kTypical ? fabs(exponent - mean) : -exponent;
  }
  __device__ int Bin(const Candidate& candidate) const {
    // infinite for a logit of minus infinity
    const double bin = Rank(candidate) * bins_per_unit;
    return bin < kBins - 1 ? static_cast<int>(bin) : kBins - 1;
  }
  __device__ int key_bits() const { return by == RankBy::kTypical ? 64 : 32; }
  __device__ uint64_t Key(const Candidate& candidate) const {
    // The bits of a number that is not negative ascend with it.
    if (by == RankBy::kTypical) {
      return static_cast<uint64_t>(__double_as_longlong(Rank(candidate)));
    }
    return ~AscendingKey(by == RankBy::kCount ? candidate.logit : Sane(candidate.logit));
  }
  __device__ uint64_t Measure(const Candidate& candidate) const {
    return by == RankBy::kCount ? 1 : FixedWeight(candidate.weight);
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

// A row's candidates, and the end of those that the last filter keeps.
struct Candidates {
  CandidateOrder order;
  int vocab;
  int32_t* border;  // scratch [vocab]
  Place last = ~Place{0};

  __device__ void Weigh() {
    if (!order.fresh) return;
    EachLoaded(
        static_cast<int>(threadIdx.x), vocab, kSampleThreads,
        [&](int id) { return order.Load(id); },
        [&](int id, Candidate candidate) { order.Weigh(id, candidate); });
    __syncthreads();
    order.fresh = false;
  }
  // Forgets the candidates that the last filter does not keep; called before another one.
  __device__ void Cut() {
    if (last == ~Place{0}) return;
    ForEach(vocab, [&](int id) {
      const Candidate candidate = order.Load(id);
      if (order.Has(candidate) && !Reaches(order, id, candidate, last)) order.weights[id] = 0;
    });
    last = ~Place{0};
  }
  __device__ uint64_t Weight(int id, const Candidate& candidate) const {
    return Reaches(order, id, candidate, last) ? FixedWeight(candidate.weight) : 0;
  }

  // Keeps the k best.
  __device__ void KeepCount(uint64_t k) {
    last = SelectLast(
        order, vocab, [k](uint64_t total) -> uint64_t { return k < total ? k : total; }, border);
  }
  // Keeps the fewest first ones whose weights reach that share of all.
  __device__ void KeepMass(double mass) {
    const auto share = [mass](uint64_t total) -> uint64_t {
      const auto target = static_cast<uint64_t>(ceil(mass * static_cast<double>(total)));
      return target < total ? target : total;
    };
    last = SelectLast(order, vocab, share, border);
  }
  __device__ void KeepAboveMinP(double min_p) {
    double best = 0;
    for (int id = static_cast<int>(threadIdx.x); id < vocab; id += kSampleThreads) {
      best = order.weights[id] > best ? order.weights[id] : best;
    }
    const double floor = BlockMax(best) * min_p;
    ForEach(vocab, [&](int id) {
      if (order.weights[id] < floor) order.weights[id] = 0;
    });
  }
  // The mean exponent: |ln p + entropy| in the definition equals the distance of a token's exponent
  // from it.
  __device__ double MeanExponent() const {
    double sum = 0, weighted = 0;
    for (int id = static_cast<int>(threadIdx.x); id < vocab; id += kSampleThreads) {
      const Candidate candidate = order.Load(id);
      if (!order.Has(candidate)) continue;
      sum += candidate.weight;
      weighted += candidate.weight * order.Exponent(candidate);
    }
    return BlockSum(weighted) / BlockSum(sum);
  }
};

// The first id at which the sum of weights, by ascending id, exceeds random / 2^64 of the total. A
// stretch of ids is divided among the warps, then the one in which the sum exceeds it.
__device__ inline int32_t Pick(const Candidates& candidates, uint64_t random) {
  const SharedPtr<uint64_t> sums = DynamicShared<uint64_t>(kPartBytes);
  const auto add = [](uint64_t a, uint64_t b) { return a + b; };
  const auto load = [&](int id) { return candidates.order.Load(id); };
  int begin = 0, end = candidates.vocab;
  uint64_t target = 0;  // less the sum of the ids before
  for (bool first = true; first || end - begin > 32; first = false) {
    const int stretch = (end - begin + 32 * kSampleWarps - 1) / (32 * kSampleWarps) * 32;
    const int own_begin = begin + Warp() * stretch, own_end = min(own_begin + stretch, end);
    uint64_t own = 0;
    EachLoaded(own_begin + Lane(), own_end, 32, load, [&](int id, const Candidate& candidate) {
      own += candidates.Weight(id, candidate);
    });
    own = WarpFold(own, add);
    if (Lane() == 0) sums[Warp()] = own;
    __syncthreads();
    const uint64_t of_warp = sums[Lane()];
    const uint64_t through = WarpPrefixSum(of_warp);
    // Below the total.
    if (first) target = __umul64hi(random >> 11 << 11, __shfl_sync(kAllLanes, through, 31));
    const unsigned beyond = __ballot_sync(kAllLanes, through > target);
    const int warp = __ffs(static_cast<int>(beyond)) - 1;
    target -= __shfl_sync(kAllLanes, through - of_warp, warp);
    begin += warp * stretch;
    end = min(begin + stretch, end);
    __syncthreads();
  }
  const int id = begin + Lane();
  const uint64_t through = WarpPrefixSum(id < end ? candidates.Weight(id, load(id)) : 0);
  return begin + __ffs(static_cast<int>(__ballot_sync(kAllLanes, through > target))) - 1;
}

// The row with mask, penalties, biases and bans applied: the row itself, or a copy in scratch
// memory.
__device__ inline const float* Adjust(const ReadTask& task, const DeviceDraw& draw,
                                      const float* row) {
  const bool masked = draw.allowed >= 0;
  if (draw.n_seen + draw.n_generated + draw.n_biased + draw.n_banned == 0 && !masked) return row;
  const int32_t* list = task.lists + draw.lists;
  float* adjusted = task.adjusted + int64_t{blockIdx.x} * task.vocab;
  const DrawParams& params = draw.params;
  const uint32_t* allowed = task.masks + draw.allowed;
  ForEach(task.vocab,
          [&](int id) { adjusted[id] = !masked || IsAllowed(allowed, id) ? row[id] : -INFINITY; });
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

// The best token. Without a finite logit it is token 0, which need not be allowed. Banned ids
// ascend.
__device__ inline int32_t Greedy(const ReadTask& task, const DeviceDraw& draw,
                                 const RowRange& range) {
  const int32_t* banned =
      task.lists + draw.lists + draw.n_seen + 2 * draw.n_generated + 2 * draw.n_biased;
  const uint32_t* allowed = draw.allowed >= 0 ? task.masks + draw.allowed : nullptr;
  int32_t id = range.first_best;
  for (int i = 0; id + 1 < task.vocab; ++id) {
    while (i < draw.n_banned && banned[i] < id) ++i;
    const bool is_banned = i < draw.n_banned && banned[i] == id;
    if (!is_banned && (allowed == nullptr || IsAllowed(allowed, id))) break;
  }
  return id;
}

// row: after Adjust.
__device__ inline int32_t DrawToken(const ReadTask& task, const DeviceDraw& draw,
                                    const float* row) {
  const int vocab = task.vocab;
  const DrawParams& params = draw.params;
  const RowRange range = FindRange(row, vocab);
  if (params.temperature == 0 || !(range.best > -INFINITY)) return Greedy(task, draw, range);
  Candidates candidates = {MakeOrder(row, range, task.weights + int64_t{blockIdx.x} * vocab,
                                     1.0 / static_cast<double>(params.temperature)),
                           vocab, task.border + int64_t{blockIdx.x} * vocab};
  CandidateOrder& order = candidates.order;
  if (params.top_k > 0 && params.top_k < vocab) {
    candidates.KeepCount(static_cast<uint64_t>(params.top_k));
  }
  if (params.typical_p < 1) {
    candidates.Weigh();
    candidates.Cut();
    order.by = CandidateOrder::RankBy::kTypical;
    order.mean = candidates.MeanExponent();
    candidates.KeepMass(params.typical_p);
  }
  if (params.top_p < 1) {
    candidates.Cut();
    order.by = CandidateOrder::RankBy::kLogit;
    candidates.KeepMass(params.top_p);
  }
  candidates.Weigh();
  if (params.min_p > 0) {
    candidates.Cut();
    candidates.KeepAboveMinP(params.min_p);
  }
  return Pick(candidates, draw.random);
}

}  // namespace ovq::kernels::cuda
