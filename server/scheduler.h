// Which sequences get how many rows in the next step. A pure function: no thread, clock or gRPC.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace ovq {

// One running sequence. Exactly one of the two: decoding (one row a step) or prefilling.
struct Candidate {
  int id = 0;                  // index into the engine's list
  int64_t prefill_tokens = 0;  // rows still to be absorbed; 0 = decoding
  int64_t arrival = 0;         // ascending order of admission
  bool parked = false;         // its stream is full: no row this step
};
struct PlanItem {
  int id;
  int32_t n_rows;
  bool operator==(const PlanItem&) const = default;
};

// One row for every decoding sequence (beyond max_rows: those waiting longest first, see `turn`),
// then prefill pieces under what is left of max_rows, oldest first. `turn` rotates decode rows when
// there are more of them than max_rows, so that none starves; pass the step number.
std::vector<PlanItem> PlanStep(std::span<const Candidate> candidates, int32_t max_rows,
                               int64_t turn);

}  // namespace ovq
