#include "base/problems.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"

namespace ovq {
namespace {

// Problems beyond this many are not listed: more than anybody reads. Without the limit, reporting a
// file whose every tensor is missing would take time quadratic in the number of layers.
constexpr size_t kMost = 200;
constexpr char kOthers[] = "ovq/problems";

// Precedes each message, because messages may hold any byte.
struct RecordHead {
  absl::StatusCode code;
  size_t bytes;
};

}  // namespace

std::vector<absl::Status> SplitProblems(const absl::Status& status) {
  if (status.ok()) return {};
  std::vector<absl::Status> problems = {absl::Status(status.code(), status.message())};
  const auto payload = status.GetPayload(kOthers);
  const std::string records = payload ? std::string(*payload) : "";
  for (size_t at = 0; at < records.size();) {
    RecordHead head;
    std::memcpy(&head, records.data() + at, sizeof(head));
    at += sizeof(head);
    problems.emplace_back(head.code, absl::string_view(records).substr(at, head.bytes));
    at += head.bytes;
  }
  return problems;
}

void AddProblems(absl::Status& status, const absl::Status& more) {
  std::vector<absl::Status> known = SplitProblems(status);
  for (const absl::Status& problem : SplitProblems(more)) {
    if (known.size() > kMost) break;
    const bool is_known = std::ranges::any_of(known, [&problem](const absl::Status& other) {
      return other.message() == problem.message();
    });
    if (is_known) continue;
    known.push_back(known.size() < kMost ? problem
                                         : absl::Status(problem.code(), "and more problems"));
  }
  if (known.empty()) return;
  std::string records;
  for (size_t i = 1; i < known.size(); ++i) {
    const absl::string_view text = known[i].message();
    const RecordHead head{known[i].code(), text.size()};
    records.append(reinterpret_cast<const char*>(&head), sizeof(head));
    records.append(text.data(), text.size());
  }
  status = known.front();
  if (!records.empty()) status.SetPayload(kOthers, absl::Cord(records));
}

absl::Status InContext(std::string_view where, const absl::Status& status) {
  absl::Status result;
  for (const absl::Status& problem : SplitProblems(status)) {
    AddProblems(result, absl::Status(problem.code(),
                                     absl::StrCat(std::string(where), ": ", problem.message())));
  }
  return result;
}

}  // namespace ovq
