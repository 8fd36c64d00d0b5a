// ReadLogits (sample.h) over logits [n_rows, vocab]. A candidate i weighs
//   w_i = exp((logit_i - best) / temperature), probability p_i = w_i / sum_j w_j;
// filters keep the fewest best tokens whose weights reach a share of the sum, and a draw takes the
// first id at which the running sum of w, by ascending id, exceeds the random number times the sum.
#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <limits>
#include <span>
#include <vector>

#include "kernels/ops/ops.h"
#include "kernels/ops/ops_device.h"
#include "kernels/ops/parallel_rows.h"
#include "kernels/ops/sample_device.h"

namespace ovq::kernels::cpu {
namespace {

constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();

// Maps any bits of a logit into a total order: NaN becomes minus infinity, infinity the largest
// finite value.
float Sane(float logit) {
  if (std::isnan(logit)) return kMinusInfinity;
  return std::min(logit, std::numeric_limits<float>::max());
}

// Finds the best logits of allowed tokens, best first: one pass with a heap whose front is the
// least of them.
void FindBest(std::span<const float> logits, std::span<TokenLogit> best,
              TokenMaskBits allowed = {}) {
  if (best.empty()) return;
  size_t found = 0;
  for (size_t i = 0; i < logits.size(); ++i) {
    if (!allowed.empty() && allowed[i / 32] == 0) {
      i |= 31;
      continue;
    }
    if (!AllowsToken(allowed, static_cast<int32_t>(i))) continue;
    const TokenLogit token = {static_cast<int32_t>(i),
                              std::isnan(logits[i]) ? kMinusInfinity : logits[i]};
    if (found == best.size()) {
      if (!BetterLogit(token, best.front())) continue;
      std::ranges::pop_heap(best, BetterLogit);
      --found;
    }
    best[found++] = token;
    std::ranges::push_heap(best.first(found), BetterLogit);
  }
  std::ranges::sort_heap(best.first(found), BetterLogit);
}

// The first id of the largest logit; 0 if none is above minus infinity. Separate lanes let the
// compiler use vectors.
int32_t ArgMax(std::span<const float> logits) {
  constexpr size_t kLanes = 16;
  float lanes[kLanes];
  std::fill_n(lanes, kLanes, kMinusInfinity);
  const size_t whole = logits.size() / kLanes * kLanes;
  for (size_t i = 0; i < whole; i += kLanes) {
    for (size_t j = 0; j < kLanes; ++j) {
      lanes[j] = logits[i + j] > lanes[j] ? logits[i + j] : lanes[j];  // false for NaN
    }
  }
  for (size_t i = whole; i < logits.size(); ++i) {
    if (logits[i] > lanes[0]) lanes[0] = logits[i];
  }
  const float best = *std::max_element(lanes, lanes + kLanes);
  if (best == kMinusInfinity) return 0;  // the first of these may stand behind NaN
  return static_cast<int32_t>(std::find(logits.begin(), logits.end(), best) - logits.begin());
}

constexpr int64_t kSumWork = 8;  // cost of one exponential in multiply-adds, roughly

// A draw with a mask of at most one token in so many looks at the allowed tokens alone.
constexpr int64_t kSparse = 8;

// The logits that a draw is made from, by ascending token.
struct RowLogits {
  std::span<const float> logits;
  std::span<const int32_t> ids = {};  // of the logits; empty: token i has logit i
  int32_t Id(size_t i) const { return ids.empty() ? static_cast<int32_t>(i) : ids[i]; }
};

// Draws from rows one after another, reusing its scratch memory.
class RowSampler {
 public:
  RowSampler(ScratchScope& scope, size_t vocab)
      : adjusted_(scope.Allocate<float>(vocab), vocab),
        ids_(scope.Allocate<int32_t>(vocab / kSparse + 1)),
        room_(scope.Allocate<Candidate>(vocab)),
        border_room_(scope.Allocate<Candidate>(vocab)) {}

  // row_sum: LogSumExp of the row.
  int32_t Draw(std::span<const float> logits, float row_sum, RowDraw& draw) {
    const DrawParams& params = draw.params;
    draw.log_sum_exp = row_sum;
    const RowLogits adjusted = Adjust(logits, draw);
    candidates_ = {};
    if (params.temperature > 0) Gather(adjusted, params);
    if (candidates_.empty()) {  // greedy, or no finite logit
      int32_t id = adjusted.Id(static_cast<size_t>(ArgMax(adjusted.logits)));
      // Without a finite logit the result is the first of them, which need not be allowed.
      const auto excluded = [&draw](int32_t token) {
        return !AllowsToken(draw.allowed, token) || std::ranges::binary_search(draw.banned, token);
      };
      while (id + 1 < static_cast<int32_t>(logits.size()) && excluded(id)) ++id;
      return id;
    }
    if (params.typical_p < 1) KeepTypical(params.typical_p);
    if (params.top_p < 1) {
      for (Candidate& c : candidates_) c.rank = -static_cast<double>(c.logit);
      KeepMass(params.top_p);
    }
    if (params.min_p > 0) KeepAboveMinP(params.min_p);
    return Pick(draw);
  }

 private:
  struct Candidate {
    int32_t id;
    float logit;
    double weight;  // exp((logit - best) / temperature): the probability up to a factor
    double rank;    // sort key of the current filter
  };

  RowLogits Adjust(std::span<const float> logits, RowDraw& draw) {
    if (draw.seen.empty() && draw.generated.empty() && draw.bias.empty() && draw.banned.empty() &&
        draw.allowed.empty()) {
      return {logits};
    }
    const DrawParams& params = draw.params;
    const RowLogits row = Allow(logits, draw);
    // Where a token's logit lies in adjusted_, -1 for one that is not there.
    const auto find = [&row](int32_t id) {
      if (row.ids.empty()) return static_cast<int64_t>(id);
      const auto at = std::ranges::lower_bound(row.ids, id);
      return at != row.ids.end() && *at == id ? at - row.ids.begin() : -1;
    };
    for (int32_t id : draw.seen) {
      const int64_t i = find(id);
      if (i < 0) continue;
      float& logit = adjusted_[i];
      logit = logit > 0 ? logit / params.repetition_penalty : logit * params.repetition_penalty;
    }
    for (const auto& [id, count] : draw.generated) {
      const int64_t i = find(id);
      if (i < 0) continue;
      adjusted_[i] -=
          params.presence_penalty + params.frequency_penalty * static_cast<float>(count);
    }
    for (const auto& [id, bias] : draw.bias) {
      if (const int64_t i = find(id); i >= 0) adjusted_[i] += bias;
    }
    for (int32_t id : draw.banned) {
      if (const int64_t i = find(id); i >= 0) adjusted_[i] = kMinusInfinity;
    }
    return row;
  }

  // Fills adjusted_ with the logits of the allowed tokens, and the draw's log_sum_exp of them.
  RowLogits Allow(std::span<const float> logits, RowDraw& draw) {
    if (draw.allowed.empty()) {
      std::ranges::copy(logits, adjusted_.begin());
      return {adjusted_};
    }
    const auto vocab = static_cast<int64_t>(logits.size());
    const int64_t n_allowed = CountAllowed(draw.allowed, vocab);
    const bool is_finite = !std::isnan(draw.log_sum_exp);
    if (n_allowed == 0 || n_allowed * kSparse > vocab) {
      const float sum =
          MaskedLogSumExp(logits.data(), draw.allowed.data(), vocab, adjusted_.data());
      if (is_finite) draw.log_sum_exp = sum;
      return {adjusted_};
    }
    size_t n = 0;
    for (size_t word = 0; word < draw.allowed.size(); ++word) {
      for (uint32_t bits = draw.allowed[word]; bits != 0; bits &= bits - 1) {
        const auto id = static_cast<int32_t>(32 * word + std::countr_zero(bits));
        if (id >= vocab) break;
        ids_[n] = id;
        adjusted_[n++] = std::isnan(logits[id]) ? kMinusInfinity : logits[id];
      }
    }
    if (is_finite) draw.log_sum_exp = RowLogSumExp(adjusted_.data(), static_cast<int64_t>(n));
    return {adjusted_.first(n), {ids_, n}};
  }

  // Collects the candidates after temperature and top_k. Those whose probability is below the
  // resolution of the random number are left out: even 2^24 of them together weigh e^-60 2^24 <
  // 2^-53 of the best.
  void Gather(const RowLogits& row, const DrawParams& params) {
    const std::span<const float> logits = row.logits;
    const bool cut = params.top_k > 0 && static_cast<size_t>(params.top_k) < logits.size();
    const float best = Sane(logits[ArgMax(logits)]);
    const double scale = 1.0 / static_cast<double>(params.temperature);
    size_t n = 0;
    // Without a branch, which would be as unpredictable as a mask is.
    const auto add = [&](int32_t id, float logit) {
      const double exponent = (static_cast<double>(logit) - best) * scale;
      room_[n] = {.id = id, .logit = logit, .weight = exponent, .rank = 0};
      n += exponent > kNegligible ? 1 : 0;
    };
    if (cut) {
      std::vector<TokenLogit> kept(static_cast<size_t>(params.top_k));
      FindBest(logits, kept);
      for (const auto& [i, logit] : kept) add(row.Id(static_cast<size_t>(i)), Sane(logit));
    } else {
      for (size_t i = 0; i < logits.size(); ++i) add(row.Id(i), Sane(logits[i]));
    }
    candidates_ = {room_, n};
    for (Candidate& c : candidates_) c.weight = std::exp(c.weight);
    // On every device a draw walks the candidates by id.
    if (cut) std::ranges::sort(candidates_, {}, &Candidate::id);
  }

  // Keeps the fewest candidates of lowest rank, ties by lower id, whose weights reach `mass` of the
  // sum.
  void KeepMass(double mass) {
    const auto before = [](const Candidate& a, const Candidate& b) {
      return a.rank != b.rank ? a.rank < b.rank : a.id < b.id;
    };
    // Linear time: weights are summed in bins of rank, and only the bin in which the sum reaches
    // the mass is sorted.
    constexpr int kBins = 1024;
    const auto [lowest, highest] =
        std::minmax_element(candidates_.begin(), candidates_.end(), before);
    const double low = lowest->rank;
    const double width = highest->rank - low;
    const double scale = width > 0 ? kBins / width : 0;
    const auto bin_of = [&](const Candidate& c) {
      return std::min(static_cast<int>((c.rank - low) * scale), kBins - 1);
    };
    std::array<double, kBins> sums{};
    for (const Candidate& c : candidates_) sums[bin_of(c)] += c.weight;
    const double target = mass * Total();
    int bin = 0;
    double sum = 0;
    for (; bin < kBins - 1 && sum + sums[bin] < target; ++bin) sum += sums[bin];
    Candidate* border_end =
        std::ranges::copy_if(candidates_, border_room_, [&](const Candidate& c) {
          return bin_of(c) == bin;
        }).out;
    const std::span<Candidate> border(border_room_, border_end);
    std::sort(border.begin(), border.end(), before);
    if (border.empty()) return;  // only rounding kept the sum below the target: all stay
    size_t kept = 0;
    do sum += border[kept++].weight;
    while (sum < target && kept < border.size());
    const Candidate last = border[kept - 1];
    EraseIf([&](const Candidate& c) { return before(last, c); });
  }

  void KeepTypical(double mass) {
    const double total = Total();
    double entropy = 0;
    for (const Candidate& c : candidates_) {
      const double p = c.weight / total;
      if (p > 0) entropy -= p * std::log(p);
    }
    for (Candidate& c : candidates_) c.rank = std::abs(std::log(c.weight / total) + entropy);
    KeepMass(mass);
  }

  void KeepAboveMinP(double min_p) {
    double best = 0;
    for (const Candidate& c : candidates_) best = std::max(best, c.weight);
    const double floor = best * min_p;
    EraseIf([&](const Candidate& c) { return c.weight < floor; });
  }

  int32_t Pick(const RowDraw& draw) const {
    const double target = UnitInterval(draw) * Total();
    double sum = 0;
    for (const Candidate& c : candidates_) {
      sum += c.weight;
      if (sum > target) return c.id;
    }
    return candidates_.back().id;
  }

  template <class Pred>
  void EraseIf(Pred pred) {
    candidates_ = {candidates_.begin(),
                   std::remove_if(candidates_.begin(), candidates_.end(), pred)};
  }
  double Total() const {
    double sum = 0;
    for (const Candidate& c : candidates_) sum += c.weight;
    return sum;
  }

  std::span<float> adjusted_;        // [vocab]
  int32_t* ids_;                     // [vocab / kSparse + 1], of adjusted_ where few are allowed
  Candidate* room_;                  // [vocab]
  Candidate* border_room_;           // [vocab], for KeepMass
  std::span<Candidate> candidates_;  // a prefix of room_, by ascending id
};

}  // namespace

void ReadLogits(DeviceContext& context, TensorView logits, LogitsReading& reading) {
  ScratchScope scope(context);
  const auto vocab = static_cast<size_t>(logits.shape[1]);
  const auto row_of = [&](int64_t row) {
    return std::span<const float>(logits.as<float>() + row * logits.shape[1], vocab);
  };
  if (logits.shape[0] == 0) return;
  // The rows whose sum is asked for; of others only whether they are finite.
  std::vector<uint8_t> is_summed(static_cast<size_t>(logits.shape[0]));
  for (const RowDraw& draw : reading.draws) is_summed[draw.row] |= draw.allowed.empty() ? 1 : 0;
  for (const RowBest& best : reading.bests) is_summed[best.row] |= best.allowed.empty() ? 1 : 0;
  for (const RowToken& token : reading.tokens) is_summed[token.row] = 1;
  ParallelRows(
      context, logits.shape[0], kSumWork * logits.shape[1], [&](int64_t begin, int64_t end) {
        for (int64_t row = begin; row < end; ++row) {
          const float* x = row_of(row).data();
          const int64_t n = logits.shape[1];
          reading.log_sum_exp[row] = is_summed[row] != 0 ? RowLogSumExp(x, n) : ZeroIfFinite(x, n);
        }
      });
  RowSampler sampler(scope, vocab);
  for (RowDraw& draw : reading.draws) {
    const std::span<const float> row = row_of(draw.row);
    const int32_t id = sampler.Draw(row, reading.log_sum_exp[draw.row], draw);
    draw.drawn = {id, row[id]};
  }
  for (RowToken& token : reading.tokens) token.logit = row_of(token.row)[token.id];
  for (RowBest& best : reading.bests) FindBest(row_of(best.row), best.best, best.allowed);
}

}  // namespace ovq::kernels::cpu
