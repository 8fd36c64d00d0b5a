#include "kernels/mixers/closest_pair/distance_lower_bounds.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <utility>
#include <vector>

#include "kernels/mixers/common/block_attention.h"

namespace ovq::kernels::test {
namespace {

// Lower bounds never exceed the computed distances, and are tight enough to be useful.
class DistanceLowerBoundsTest : public ::testing::Test {
 protected:
  static constexpr int kBlocks = 3, kSlots = kBlocks * kBlockSlots;
  static constexpr float kScale = 0.25f;
  // bfloat16 blocks, and queries: copies of candidates and others. The further the data is from 0,
  // the more |x|^2 + |y|^2 - 2 x . y cancels.
  DistanceLowerBoundsTest() : random_(11) {}
  void Make(int head_dim, int value_stride, int n_rows, float offset) {
    head_dim_ = head_dim;
    value_stride_ = value_stride;
    std::normal_distribution<float> normal(offset);
    const auto fill = [&](std::vector<BF16>& to, int n) {
      to.resize(static_cast<size_t>(n));
      for (BF16& x : to) x = RoundToBF16(normal(random_));
    };
    fill(keys_, kSlots * head_dim);
    fill(values_, kSlots * value_stride);
    blocks_.clear();
    for (int b = 0; b < kBlocks; ++b) {
      blocks_.push_back({keys_.data() + b * head_dim * kBlockSlots,
                         values_.data() + b * value_stride * kBlockSlots, nullptr, nullptr,
                         nullptr});
    }
    of_keys_.clear();
    of_values_.clear();
    for (int r = 0; r < n_rows; ++r) {
      const int like = r * 13 % kSlots;
      of_keys_.emplace_back();
      of_values_.emplace_back();
      for (int c = 0; c < head_dim; ++c) of_keys_.back().push_back(Key(like, c));
      for (int c = 0; c < value_stride; ++c) of_values_.back().push_back(Value(like, c));
      if (r % 2 == 0) of_keys_.back()[0] = ToFloat(RoundToBF16(normal(random_)));
    }
  }
  float Key(int i, int c) const {
    return ToFloat(keys_[static_cast<size_t>((i / kBlockSlots * head_dim_ + c) * kBlockSlots +
                                             i % kBlockSlots)]);
  }
  float Value(int i, int c) const {
    return ToFloat(values_[static_cast<size_t>(i * value_stride_ + c)]);
  }
  // Distance to candidate i; its squared norm if key and value are empty.
  template <class X = float>
  double Distance(const std::vector<X>& key, const std::vector<X>& value, int i) const {
    double keys = 0, values = 0;
    for (int c = 0; c < head_dim_; ++c) {
      const double apart = (key.empty() ? 0 : key[static_cast<size_t>(c)]) - Key(i, c);
      keys += apart * apart;
    }
    for (int c = 0; c < value_stride_; ++c) {
      const double apart = (value.empty() ? 0 : value[static_cast<size_t>(c)]) - Value(i, c);
      values += apart * apart;
    }
    return keys + kScale * values;
  }
  double SquaredNorm(size_t r) const {
    double sum = 0;
    for (const float x : of_keys_[r]) sum += double{x} * x;
    for (const float x : of_values_[r]) sum += kScale * double{x} * x;
    return sum;
  }
  std::vector<std::vector<float>> LowerBounds() const {
    std::vector<std::vector<float>> lower_bounds(of_keys_.size(),
                                                 std::vector<float>(kSlots, -1.0f));
    std::vector<LowerBoundQuery> queries;
    for (size_t r = 0; r < lower_bounds.size(); ++r) {
      queries.push_back({of_keys_[r].data(), of_values_[r].data(), lower_bounds[r].data()});
    }
    const size_t n_pairs = PackedPairs(head_dim_, value_stride_);
    std::vector<uint32_t> scratch(kMaxLowerBoundQueries * n_pairs), pairs(kSlots * n_pairs);
    std::vector<float> squares(kSlots);
    const PackedCandidates packed = {.head_dim = head_dim_,
                                     .value_stride = value_stride_,
                                     .value_scale = kScale,
                                     .n_blocks = kBlocks,
                                     .pairs = pairs.data(),
                                     .squares = squares.data()};
    PackCandidatesCpu(blocks_, packed);
    for (int i = 0; i < kSlots; ++i) {
      const double square = Distance<float>({}, {}, i);
      EXPECT_NEAR(squares[static_cast<size_t>(i)], square, 1e-5 * square);
    }
    DistanceLowerBoundsCpu(packed, queries, scratch.data());
    return lower_bounds;
  }

  std::mt19937 random_;
  int head_dim_ = 0, value_stride_ = 0;
  std::vector<BF16> keys_, values_;
  std::vector<CandidateBlock> blocks_;
  std::vector<std::vector<float>> of_keys_, of_values_;
};

TEST_F(DistanceLowerBoundsTest, StayBelowDistancesAndNear) {
  for (const auto& [head_dim, value_stride] : {std::pair{5, 16}, {24, 48}, {128, 128}}) {
    for (const int n_rows : {1, 3, 5, 8, 13, 16}) {
      for (const float offset : {0.0f, 20.0f}) {
        Make(head_dim, value_stride, n_rows, offset);
        const std::vector<std::vector<float>> lower_bounds = LowerBounds();
        for (size_t r = 0; r < lower_bounds.size(); ++r) {
          for (int i = 0; i < kSlots; ++i) {
            const double distance = Distance(of_keys_[r], of_values_[r], i);
            EXPECT_LE(lower_bounds[r][static_cast<size_t>(i)], distance);
            EXPECT_GE(
                lower_bounds[r][static_cast<size_t>(i)],
                std::max(0.0, distance - 6e-4 * (SquaredNorm(r) + Distance<float>({}, {}, i))));
          }
        }
      }
    }
  }
}

TEST_F(DistanceLowerBoundsTest, MoveWithTheMean) {
  constexpr float kShare = 0.3f;
  Make(24, 32, 2, 0.0f);
  std::vector<std::vector<float>> lower_bounds = LowerBounds();
  std::vector<double> key, value;
  double apart = 0;
  for (size_t c = 0; c < of_keys_[0].size(); ++c) {
    const double x = of_keys_[0][c], y = of_keys_[1][c];
    key.push_back(x + kShare * (y - x));
    apart += (x - y) * (x - y);
  }
  for (size_t c = 0; c < of_values_[0].size(); ++c) {
    const double x = of_values_[0][c], y = of_values_[1][c];
    value.push_back(x + kShare * (y - x));
    apart += kScale * (x - y) * (x - y);
  }
  MoveLowerBoundsCpu(lower_bounds[1].data(), kShare, static_cast<float>(apart * 1.00001),
                     lower_bounds[0]);
  for (int i = 0; i < kSlots; ++i) {
    const double distance = Distance(key, value, i);
    EXPECT_LE(lower_bounds[0][static_cast<size_t>(i)], distance);
    // Tolerance as above, with squared norms of at most 130 here.
    EXPECT_GE(lower_bounds[0][static_cast<size_t>(i)], std::max(0.0, distance - 6e-4 * 260));
  }
}

}  // namespace
}  // namespace ovq::kernels::test
