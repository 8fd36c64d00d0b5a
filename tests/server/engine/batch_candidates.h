// Candidates and costs for tests of plans.
#pragma once

#include <cstdint>
#include <optional>

#include "absl/time/time.h"
#include "server/engine/scheduling/batch_planner.h"

namespace ovq::engine::test {

inline BatchCandidate Prefilling(int64_t n_tokens, int64_t order, const char* client = "") {
  return {.n_tokens = n_tokens, .order = order, .client = client};
}
inline BatchCandidate Decoding(int64_t order, const char* client = "") {
  BatchCandidate candidate = Prefilling(1, order, client);
  candidate.decoding = true;
  return candidate;
}

// The costs of a device that takes `fixed` + 1 per token, in milliseconds.
inline BatchCostModel Learned(double fixed,
                              std::optional<absl::Duration> target = absl::InfiniteDuration(),
                              absl::Duration least = absl::ZeroDuration()) {
  BatchCostModel costs(target, least);
  for (int round = 0; round < 200; ++round) {
    for (const double cost : {1, 2, 5, 8, 30, 70, 200, 512}) {
      costs.Observe(cost, absl::Milliseconds(fixed + cost));
    }
  }
  return costs;
}

}  // namespace ovq::engine::test
