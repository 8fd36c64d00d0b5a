// Statuses that tell all that is wrong. To whoever does not ask for more, such a status is its
// first problem: code and message.
#pragma once

#include <string_view>
#include <vector>

#include "absl/status/status.h"

namespace ovq {

// Adds the problems of `more` behind those of `status`, each once: of equal messages the first
// stays. Beyond 200, only that there are more.
void AddProblems(absl::Status& status, const absl::Status& more);

// In their order, each a status of its own; none of OK.
std::vector<absl::Status> SplitProblems(const absl::Status& status);

// Every problem as "where: problem".
absl::Status InContext(std::string_view where, const absl::Status& status);

}  // namespace ovq
