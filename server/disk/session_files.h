// The files of the sessions in a session folder: their names, and whether they are whole.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

#include "absl/status/statusor.h"
#include "server/store/session_store.h"

namespace ovq::disk {

// Thread-safe.
class SessionFiles {
 public:
  explicit SessionFiles(std::string path) : path_(std::move(path)) {}

  const std::string& path() const { return path_; }
  std::string JournalPath(const std::string& id) const;
  std::string SnapshotPath(const std::string& id, uint64_t version) const;
  std::string TextPath(const std::string& id) const;
  // The name of a text before it gets TextPath; no two texts at a time have the same number.
  std::string NewTextPath(const std::string& id, uint64_t number) const;
  absl::StatusOr<store::Journal> ReadJournal(const std::string& id) const;
  // Writes the text that belongs to a session, under NewTextPath, and reads it. NotFound without
  // one, DataLoss for a damaged one.
  absl::Status WriteNewText(const std::string& id, uint64_t number, std::string_view text) const;
  absl::StatusOr<std::string> ReadText(const std::string& id) const;
  // Checks a session's files and cuts a journal's half-written end off. DataLoss for damaged ones
  // and for a snapshot that is missing; any other error says nothing against the session.
  absl::StatusOr<store::FoundSession> Check(const std::string& id) const;
  // Whether the journal goes on from this version, and the snapshot of it is there, if it needs
  // one, in the size that the journal says.
  bool HasSnapshot(const std::string& id, uint64_t version) const;
  void MoveToDamaged(const std::string& id) const;

  static constexpr const char* kJournalEnd = ".journal";
  static constexpr const char* kSnapshotEnd = ".session";
  static constexpr const char* kTextEnd = ".text";

 private:
  const std::string path_;
};

}  // namespace ovq::disk
