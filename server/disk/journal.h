// What a session on disk is, said once, and what has happened to it since: a small file beside the
// snapshot of its state (docs/session-format.md, "Session folders").
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace ovq {

inline constexpr size_t kMaxTurnEnds = 256;  // remembered of a session

// How far a session is: what callers see of it while its state lies on disk.
struct SessionMark {
  int64_t length = 0;                   // tokens of the conversation
  std::optional<int32_t> pending = {};  // its last token, if that waits outside the state
  std::vector<int64_t> turn_ends = {};  // lengths, rising
  int64_t prompt_tokens = 0, generated_tokens = 0;  // in all
  int64_t used_unix_ms = 0;
};

struct JournalHead {
  std::string id, tenant;              // kMaxTextBytes at most, like all texts
  std::string memory;                  // ModelVariant::name
  std::string fingerprint;             // of the model that reads through it
  uint64_t layout = 0;                 // StateLayout::fingerprint
  int32_t slot_cap = 0;                // 0: no layer has one
  bool keeps_tokens = false;           // its snapshots have all tokens
  std::optional<int64_t> ttl_ms = {};  // none: it never expires
  int64_t created_unix_ms = 0;
  // The entries of this file come after so many changes. 0: none, the session began empty; else the
  // snapshot of this version says what it was then.
  uint64_t version = 0;
  uint64_t snapshot_bytes = 0;  // of that file
  SessionMark mark = {};        // then
};

// A change: a turn, or a way back.
struct JournalEntry {
  int64_t begin = 0;                 // tokens of the conversation that stay
  std::vector<int32_t> tokens = {};  // that follow them
  std::optional<int32_t> pending = {};
  bool ends_turn = false;
  int64_t prompt_tokens = 0, generated_tokens = 0;  // in all
  int64_t used_unix_ms = 0;
};

struct Journal {
  JournalHead head;
  std::vector<JournalEntry> entries;
  // Of the file, up to the end of the last whole entry. What follows was being written when the
  // server ended, and nobody was told of it.
  size_t good_bytes = 0;

  uint64_t version() const { return head.version + entries.size(); }
  SessionMark mark() const;  // now
};

void Apply(const JournalEntry& entry, SessionMark& mark);

std::string EncodeHead(const JournalHead& head);
std::string EncodeEntry(const JournalEntry& entry);
// DataLoss for what no crash explains: a checksum, a head that is not whole, an entry that does not
// fit what was before. FailedPrecondition for another version.
absl::StatusOr<Journal> DecodeJournal(std::string_view bytes);

}  // namespace ovq
