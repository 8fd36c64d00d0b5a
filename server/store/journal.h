// Defines a session's journal: a small file beside the snapshot of its state, with one head that
// describes the session and one entry for each later change (docs/session-format.md, "Session
// folders").
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace ovq::store {

inline constexpr size_t kMaxTurnEnds = 256;  // kept for one session

// A session's progress: the fields that callers see while its state is on disk.
struct SessionMark {
  int64_t length = 0;                   // tokens in the conversation
  std::optional<int32_t> pending = {};  // the last token if it is not yet in the state
  std::vector<int64_t> turn_ends = {};  // conversation lengths at the ends of turns, ascending
  int64_t prompt_tokens = 0, generated_tokens = 0;  // totals
  int64_t used_unix_ms = 0;
  // The engine's own bytes about an answer that may go on; "" for none.
  std::string unfinished = {};
};

struct JournalHead {
  std::string id, tenant;              // at most kMaxTextBytes, like all texts
  std::string cache_policy;            // ModelVariant::name
  std::string fingerprint;             // fingerprint of the model that the session's state belongs
                                       // to
  uint64_t layout = 0;                 // StateLayout::fingerprint
  int32_t slot_cap = 0;                // 0: no layer has a cap
  bool keeps_tokens = false;           // the snapshots contain all tokens
  std::optional<int64_t> ttl_ms = {};  // nullopt: never expires
  int64_t created_unix_ms = 0;
  // Number of changes that precede this file's entries. 0: the session began empty; otherwise the
  // snapshot of this version has the state after them.
  uint64_t version = 0;
  uint64_t snapshot_bytes = 0;  // size of the snapshot file
  SessionMark mark = {};        // the session's progress at that version
};

// A change of a session: a turn, or a rewind.
struct JournalEntry {
  int64_t begin = 0;                 // number of the conversation's tokens that stay
  std::vector<int32_t> tokens = {};  // tokens that follow them
  std::optional<int32_t> pending = {};
  bool ends_turn = false;
  int64_t prompt_tokens = 0, generated_tokens = 0;  // totals after the change
  int64_t used_unix_ms = 0;
  std::string unfinished = {};  // as in SessionMark, after the change
};

struct Journal {
  JournalHead head;
  std::vector<JournalEntry> entries;
  // Size of the file up to the end of the last complete entry, and of the rest. That was being
  // written when the server ended, and no caller was told of it.
  size_t good_bytes = 0, torn_bytes = 0;

  uint64_t version() const { return head.version + entries.size(); }
  SessionMark mark() const;  // the progress after all entries
};

void Apply(const JournalEntry& entry, SessionMark& mark);

std::string EncodeHead(const JournalHead& head);
std::string EncodeEntry(const JournalEntry& entry);
// Decodes a journal. DataLoss for damage that no crash explains: a wrong checksum, an incomplete
// head, an entry that contradicts those before. FailedPrecondition for another format version.
absl::StatusOr<Journal> DecodeJournal(std::string_view bytes);

}  // namespace ovq::store
