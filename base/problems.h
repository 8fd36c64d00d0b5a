// Statuses that carry several problems. Code and message are those of the first one; SplitProblems
// returns all of them.
#pragma once

#include <string_view>
#include <vector>

#include "absl/status/status.h"

namespace ovq {

// Appends the problems of `more` to `status`. Of equal messages only the first stays. After 200
// problems, only the fact that there are more is added.
void AddProblems(absl::Status& status, const absl::Status& more);

// All problems in order, each as a status of its own; empty for OK.
std::vector<absl::Status> SplitProblems(const absl::Status& status);

// Prefixes every problem: "where: problem".
absl::Status InContext(std::string_view where, const absl::Status& status);

}  // namespace ovq
