#include "model/inspect/share_search.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <vector>

namespace ovq::model::test {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::Ge;
using Shares = std::vector<double>;

TEST(BestShares, ALayerThatNeedsNoSlotsGetsTheLeast) {
  ShareCurve flat, steep;
  for (const double share : ShareLadder(2)) {
    flat[share] = 1;
    steep[share] = -share;
  }
  EXPECT_THAT(BestShares(std::vector{flat, steep}), ElementsAre(1.0 / 16, 31.0 / 16));
  EXPECT_THAT(BestShares(std::vector{steep, flat}), ElementsAre(31.0 / 16, 1.0 / 16));
}

TEST(BestShares, ALossThatGrowsWithTheShareIsChance) {
  const ShareCurve noisy = {{1.0 / 16, 0.5}, {0.5, 0.9}, {2, 0.5}},
                   falling = {{1.0 / 16, 1}, {0.5, 0.6}, {2, 0}};
  EXPECT_THAT(BestShares(std::vector{noisy, falling}), ElementsAre(1.0 / 16, 31.0 / 16));
}

// Loss at a share by linear interpolation over log2, for falling curves.
double Interpolated(const ShareCurve& curve, double share) {
  const auto right = curve.lower_bound(share);
  if (right->first == share || right == curve.begin()) return right->second;
  const auto left = std::prev(right);
  const double part = std::log2(share / left->first) / std::log2(right->first / left->first);
  return left->second * (1 - part) + right->second * part;
}

TEST(BestShares, TheSumOfLossesIsTheLeastOfAll) {
  const std::vector<ShareCurve> curves = {
      {{1.0 / 16, 0.9}, {0.25, 0.35}, {1, 0.3}, {2, 0.1}, {3, 0}},
      {{1.0 / 16, 0.6}, {0.25, 0.55}, {1, 0.1}, {2, 0.05}, {3, 0}},
      {{1.0 / 16, 0.2}, {0.25, 0.15}, {1, 0.12}, {2, 0.1}, {3, 0.1}}};
  double least = 1e9;
  for (int a = 1; a <= 46; ++a) {
    for (int b = 1; a + b <= 47; ++b) {
      least =
          std::min(least, Interpolated(curves[0], a / 16.0) + Interpolated(curves[1], b / 16.0) +
                              Interpolated(curves[2], (48 - a - b) / 16.0));
    }
  }
  const std::vector<double> shares = BestShares(curves);
  double sum = 0, loss = 0;
  for (size_t i = 0; i < shares.size(); ++i) {
    sum += shares[i];
    loss += Interpolated(curves[i], shares[i]);
  }
  EXPECT_EQ(sum, 3);
  EXPECT_NEAR(loss, least, 1e-12);
}

// A search, and how often it has measured.
struct Improved {
  Shares shares;
  std::vector<double> kept;
  int n_measured = 0;
};

template <class Bits>
Improved Improve(const Shares& from, double exact, Bits bits) {
  Improved improved;
  const double sum = std::reduce(from.begin(), from.end());
  const auto check = [&](const Shares& shares) {
    EXPECT_EQ(std::reduce(shares.begin(), shares.end()), sum);
    EXPECT_THAT(shares, Each(Ge(1.0 / kShareSteps)));
  };
  const auto found = ImproveShares(
      from, exact,
      [&](const Shares& shares) -> absl::StatusOr<double> {
        check(shares);
        ++improved.n_measured;
        return bits(shares);
      },
      [&](const Shares& shares, double lost) {
        check(shares);
        EXPECT_EQ(lost, bits(shares));
        improved.kept.push_back(lost);
      });
  EXPECT_TRUE(found.ok()) << found.status();
  if (found.ok()) improved.shares = *found;
  return improved;
}

// Each of four heads can answer alone, and any one of them can be spared.
TEST(ImproveShares, OfHeadsThatHoldTheSameOneGetsEverything) {
  const Improved improved = Improve({1, 1, 1, 1}, 0, [](const Shares& shares) {
    return std::max(0.0, 3 - *std::ranges::max_element(shares));
  });
  Shares sorted = improved.shares;
  std::ranges::sort(sorted);
  EXPECT_GE(sorted.back(), 3);
  EXPECT_EQ(improved.kept.front(), 2);
  EXPECT_EQ(improved.kept.back(), 0);
}

TEST(ImproveShares, AHeadThatNeedsNoSlotsGivesThemToTheOthersInProportion) {
  const Improved improved =
      Improve({1, 0.75, 1.25}, 0, [](const Shares& shares) { return shares[0]; });
  EXPECT_THAT(improved.shares, ElementsAre(1.0 / 16, 18.0 / 16, 29.0 / 16));
}

TEST(ImproveShares, ThoseThatWereSparedGetNothingBack) {
  const Improved improved = Improve({1, 1, 1, 1}, -1, [](const Shares& shares) {
    return 4 * shares[0] + 2 * shares[1] - shares[3];
  });
  EXPECT_THAT(improved.shares, ElementsAre(1.0 / 16, 1.0 / 16, 1.0 / 16, 61.0 / 16));
}

TEST(ImproveShares, AHeadThatNeedsMostGetsMore) {
  const Improved improved = Improve({1, 1, 1, 1}, 0, [](const Shares& shares) {
    double lost = 0;
    for (size_t i = 0; i < 4; ++i) lost += (i == 2 ? 9 : 1) / shares[i];
    return lost;
  });
  EXPECT_EQ(improved.shares[2], 2);  // the best of 1/x and 9/x is 2
  EXPECT_NEAR(improved.shares[0], 2.0 / 3, 1.0 / 16);
}

// The last head needs all that the first can spare, and gains nothing from less.
TEST(ImproveShares, OneHeadGetsWhatAnotherCanSpare) {
  const Improved improved = Improve({1, 1, 1, 1}, 0, [](const Shares& shares) {
    return (shares[3] < 1.9 ? 1 : 0.5) + std::abs(shares[1] - 1) + std::abs(shares[2] - 1);
  });
  EXPECT_THAT(improved.shares, ElementsAre(1.0 / 16, 1, 1, 31.0 / 16));
}

TEST(ImproveShares, WhatGainsLessThanAFiftiethIsNotKept) {
  const auto slope = [](double weight) {
    return [weight](const Shares& shares) { return 1 + weight * (shares[0] - 1); };
  };
  const Improved flat = Improve({1, 1}, 0, slope(0.0199));
  EXPECT_THAT(flat.shares, ElementsAre(1, 1));
  EXPECT_EQ(flat.n_measured, 1 + 2 * 2 + 1);  // the first shares, two changes a head, a gift
  EXPECT_THAT(Improve({1, 1}, 0, slope(0.04)).shares, ElementsAre(1.0 / 16, 31.0 / 16));
  EXPECT_THAT(Improve({1, 1}, 0.5, slope(0.0199)).shares, ElementsAre(1.0 / 16, 31.0 / 16));
}

TEST(ImproveShares, ErrorsOfAMeasurementEndIt) {
  for (int good : {0, 1, 3}) {
    const auto found = ImproveShares(
        {1, 1}, 0,
        [&good](const Shares& shares) -> absl::StatusOr<double> {
          if (good-- == 0) return absl::ResourceExhaustedError("no memory");
          return 1 + shares[0];
        },
        [](const Shares&, double) {});
    EXPECT_EQ(found.status().message(), "no memory");
  }
}

}  // namespace
}  // namespace ovq::model::test
