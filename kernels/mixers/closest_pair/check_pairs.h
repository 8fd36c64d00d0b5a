// What a chunk's pass relies on, of states that come from outside.
#pragma once

#include "absl/status/status.h"
#include "kernels/mixers/closest_pair/closest_pair.h"
#include "kernels/mixers/state_check.h"

namespace ovq {

// That rows and work blocks hold as many candidates, and rows that have not joined, as there are at
// this position, each with a count, and that partners are candidates. Then every merge that is due
// finds its pair, and what a chunk leaves has a slot. Fields are in their ranges. DataLoss.
absl::Status CheckPairs(const ClosestPairConfig& config, const LayerBytes& layer);

}  // namespace ovq
