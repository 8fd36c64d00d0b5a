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
  bool paused = false;         // its stream is full: no row this step
};
struct PlanItem {
  int id;
  int32_t n_rows;
  bool operator==(const PlanItem&) const = default;
};

// Decoding never takes the last max_rows / kPrefillShare rows of a step (at least one of several)
// while something prefills, so that a server full of long answers still takes in new prompts.
inline constexpr int32_t kPrefillShare = 8;

// One row for every decoding sequence (when there are more than rows for them, those waiting
// longest, see `turn`), then parts of prompts under what is left of max_rows, oldest first. `turn`
// rotates decode rows, so that none starves; pass the step number.
std::vector<PlanItem> PlanStep(std::span<const Candidate> candidates, int32_t max_rows,
                               int64_t turn);

}  // namespace ovq
