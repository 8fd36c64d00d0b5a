#include "model/inspect/share_search.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <optional>
#include <utility>

#include "base/status_macros.h"

namespace ovq::model {
namespace {

// The curve at `share`, never above what a smaller share loses.
double LossAt(const ShareCurve& curve, double share) {
  double least = std::numeric_limits<double>::infinity();
  auto right = curve.begin();
  for (; right != curve.end() && right->first < share; ++right)
    least = std::min(least, right->second);
  if (right == curve.end()) return least;
  const double high = std::min(least, right->second);
  if (right == curve.begin() || right->first == share) return high;
  const double left = std::prev(right)->first;
  const double part = std::log(share / left) / std::log(right->first / left);
  return least + part * (high - least);
}

// Shares in sixteenths.
using Steps = std::vector<int>;

Steps AsSteps(const std::vector<double>& shares) {
  Steps steps;
  for (const double share : shares) {
    steps.push_back(static_cast<int>(std::lround(share * kShareSteps)));
  }
  return steps;
}

std::vector<double> AsShares(const Steps& steps) {
  std::vector<double> shares;
  for (const int n : steps) shares.push_back(static_cast<double>(n) / kShareSteps);
  return shares;
}

// `steps` with `own` steps for one head. Those others that have more than 1 share what is left, in
// proportion to what they have, at least 1 each. Unchanged if there are none.
Steps Moved(const Steps& steps, size_t head, int own) {
  const auto is_free = [&](size_t i) { return i != head && steps[i] > 1; };
  int left = std::reduce(steps.begin(), steps.end()) - own, weight = 0, n_free = 0;
  for (size_t i = 0; i < steps.size(); ++i) {
    if (is_free(i)) {
      weight += steps[i];
      ++n_free;
    } else if (i != head) {
      left -= steps[i];
    }
  }
  if (n_free == 0) return steps;
  Steps moved = steps;
  moved[head] = own;
  for (size_t i = 0; i < steps.size(); ++i) {
    if (!is_free(i)) continue;
    --n_free;
    const auto share = static_cast<int>(std::lround(static_cast<double>(steps[i]) * left / weight));
    moved[i] = std::clamp(share, 1, left - n_free);
    left -= moved[i];
    weight -= steps[i];
  }
  return moved;
}

// A change of shares: `own` steps for a head, or all but one of those of the head `from` besides.
struct Move {
  size_t head = 0;
  int own = 1;
  std::optional<size_t> from = std::nullopt;
  double bits = std::numeric_limits<double>::infinity();

  Steps Make(const Steps& steps) const {
    if (!from) return Moved(steps, head, own);
    Steps moved = steps;
    moved[head] += std::exchange(moved[*from], 1) - 1;
    return moved;
  }
};

// A search from some shares.
class ShareSearch {
 public:
  ShareSearch(const std::vector<double>& shares, const MeasureShareBits& measure,
              const KeptShares& kept)
      : steps_(AsSteps(shares)), measure_(measure), kept_(kept) {}

  absl::Status Begin(double exact) {
    ASSIGN_OR_RETURN(bits_, measure_(AsShares(steps_)));
    least_gain_ = std::max(0.0, (bits_ - exact) / 50);
    kept_(AsShares(steps_), bits_);
    return absl::OkStatus();
  }

  // True if a round has changed something.
  absl::StatusOr<bool> Round() {
    std::vector<Move> moves;
    Move spared;
    for (size_t head = 0; head < steps_.size(); ++head) {
      Move spare = {.head = head},
           twice = {.head = head, .own = std::min(2 * steps_[head], Most())};
      RETURN_IF_ERROR(Try(spare, moves));
      RETURN_IF_ERROR(Try(twice, moves));
      if (steps_[head] > 1 && spare.bits < spared.bits) spared = spare;
    }
    for (size_t head = 0; head < steps_.size(); ++head) {
      Move given = {.head = head, .from = spared.head};
      if (head != spared.head) RETURN_IF_ERROR(Try(given, moves));
    }
    std::ranges::sort(moves, {}, &Move::bits);
    bool is_first = true;
    for (Move& move : moves) {
      if (!std::exchange(is_first, false)) RETURN_IF_ERROR(Measure(move));
      if (!Gains(move)) continue;
      steps_ = move.Make(steps_);
      bits_ = move.bits;
      kept_(AsShares(steps_), bits_);
    }
    return !moves.empty();
  }

  std::vector<double> Shares() const { return AsShares(steps_); }

 private:
  // The most steps that a head can have.
  int Most() const {
    return std::reduce(steps_.begin(), steps_.end()) - static_cast<int>(steps_.size()) + 1;
  }
  bool Gains(const Move& move) const { return move.bits < bits_ - least_gain_; }
  // Sets the bits of a move; those that are known if it changes nothing.
  absl::Status Measure(Move& move) const {
    move.bits = bits_;
    const Steps moved = move.Make(steps_);
    if (moved == steps_) return absl::OkStatus();
    ASSIGN_OR_RETURN(move.bits, measure_(AsShares(moved)));
    return absl::OkStatus();
  }
  // Measures a move and adds it to those that gain.
  absl::Status Try(Move& move, std::vector<Move>& gaining) const {
    RETURN_IF_ERROR(Measure(move));
    if (Gains(move)) gaining.push_back(move);
    return absl::OkStatus();
  }

  Steps steps_;
  double bits_ = 0, least_gain_ = 0;
  const MeasureShareBits& measure_;
  const KeptShares& kept_;
};

}  // namespace

std::vector<double> ShareLadder(int64_t n) {
  std::vector<double> shares;
  for (double share = 1.0 / kShareSteps; share < static_cast<double>(n); share *= 2) {
    shares.push_back(share);
  }
  shares.push_back(static_cast<double>(n));
  return shares;
}

std::vector<double> BestShares(std::span<const ShareCurve> curves) {
  const size_t n_steps = kShareSteps * curves.size();
  constexpr double kNone = std::numeric_limits<double>::infinity();
  // best[n]: the least sum of the curves so far, with n steps between them
  std::vector<double> best(n_steps + 1, kNone);
  best[0] = 0;
  std::vector<std::vector<size_t>> choices;
  for (const ShareCurve& curve : curves) {
    std::vector<double> sums(n_steps + 1, kNone);
    std::vector<size_t> choice(n_steps + 1, 1);
    for (size_t own = 1; own <= n_steps; ++own) {
      const double loss = LossAt(curve, static_cast<double>(own) / kShareSteps);
      for (size_t n = own; n <= n_steps; ++n) {
        if (best[n - own] + loss >= sums[n]) continue;
        sums[n] = best[n - own] + loss;
        choice[n] = own;
      }
    }
    best = std::move(sums);
    choices.push_back(std::move(choice));
  }
  std::vector<double> shares(curves.size());
  size_t left = n_steps;
  for (size_t i = curves.size(); i-- > 0;) {
    const size_t own = choices[i][left];
    shares[i] = static_cast<double>(own) / kShareSteps;
    left -= own;
  }
  return shares;
}

absl::StatusOr<std::vector<double>> ImproveShares(const std::vector<double>& shares, double exact,
                                                  const MeasureShareBits& measure,
                                                  const KeptShares& kept) {
  constexpr int kMaxRounds = 8;
  ShareSearch search(shares, measure, kept);
  RETURN_IF_ERROR(search.Begin(exact));
  for (int round = 0; round < kMaxRounds; ++round) {
    ASSIGN_OR_RETURN(const bool changed, search.Round());
    if (!changed) break;
  }
  return search.Shares();
}

}  // namespace ovq::model
