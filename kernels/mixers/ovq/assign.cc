#include "kernels/mixers/ovq/assign.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

namespace ovq {
namespace {

// Ascending by score, then by index. NaN, which only broken weights give, sorts last.
void SortByScore(std::span<const float> score, std::span<int32_t> order) {
  const auto rank = [&](int32_t i) {
    return std::isnan(score[i]) ? std::numeric_limits<float>::infinity() : score[i];
  };
  std::sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
    const float score_a = rank(a), score_b = rank(b);
    return score_a != score_b ? score_a < score_b : a < b;
  });
}

}  // namespace

void AssignFirstChunk(std::span<const float> first_score, int64_t n_new, std::span<int32_t> order,
                      std::span<int32_t> assignment) {
  std::fill(assignment.begin(), assignment.end(), 0);
  const std::span<int32_t> others = order.subspan(1);
  std::iota(others.begin(), others.end(), 1);
  SortByScore(first_score, others);
  for (int64_t i = 0; i + 1 < n_new; ++i) assignment[others[i]] = static_cast<int32_t>(i + 1);
}

void AssignChunk(std::span<const float> best_score, std::span<const int32_t> best_slot,
                 int64_t n_old, int64_t n_new, std::span<int32_t> order,
                 std::span<int32_t> assignment) {
  std::copy(best_slot.begin(), best_slot.end(), assignment.begin());
  std::iota(order.begin(), order.end(), 0);
  SortByScore(best_score, order);
  for (int64_t i = 0; i < n_new; ++i) assignment[order[i]] = static_cast<int32_t>(n_old + i);
}

}  // namespace ovq
