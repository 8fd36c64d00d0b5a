// Searches for shares of a session's slots: those of layers by what each of them loses alone, those
// of heads by trying one change after another.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <vector>

#include "absl/status/statusor.h"

namespace ovq::model {

// Shares are multiples of 1/16, and none is less.
inline constexpr int kShareSteps = 16;

// A layer's loss in bits per scored token, by its share of the slots.
using ShareCurve = std::map<double, double>;

// Shares from 1/16 to n, for n layers: powers of two, and the whole.
std::vector<double> ShareLadder(int64_t n);

// The shares in steps of 1/16, 1 in the mean, whose losses have the least sum. Curves are
// interpolated linearly over the logarithm of the share, and rise nowhere: that more slots cost
// something is chance.
std::vector<double> BestShares(std::span<const ShareCurve> curves);

// Bits per scored token with these shares; 1 in the mean.
using MeasureShareBits = std::function<absl::StatusOr<double>(const std::vector<double>& shares)>;
// Takes the first shares of a search, then those after each change that is kept.
using KeptShares = std::function<void(const std::vector<double>& shares, double bits)>;

// Changes shares of heads as long as that wins back some of the bits that they lose to `exact`.
// Heads often hold the same, so that each of them can be spared and not all of them: therefore
// every change is measured with the others that were kept. In a round each head is tried with the
// least share and with twice its own, and those others that already have the least lend nothing and
// get nothing; then with what the head that can be spared best has. The changes that gain alone are
// tried behind one another, the best first. A change is kept if it wins back a fiftieth of what the
// first shares lose. The search ends with a round that keeps nothing, or the eighth.
//
// shares: multiples of 1/16, 1 in the mean. Errors are those of `measure`.
absl::StatusOr<std::vector<double>> ImproveShares(const std::vector<double>& shares, double exact,
                                                  const MeasureShareBits& measure,
                                                  const KeptShares& kept);

}  // namespace ovq::model
