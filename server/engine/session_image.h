// A session as bytes: what an export writes and an import reads (docs/session-format.md).
//
// No sampler is kept: draws are a function of (seed, position) of the request that makes them, and
// penalties follow from the tokens.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "base/sha256.h"
#include "model/state_layout.h"

namespace ovq {

struct SessionImage {
  std::string model_fingerprint;    // LanguageModel::fingerprint, 64 hex digits
  uint64_t layout_fingerprint = 0;  // StateLayout::fingerprint
  std::string memory;               // EngineMemory::name; 255 bytes at most
  int32_t slot_cap = 0;             // 0: no layer has one
  int64_t position = 0;             // tokens that the state has consumed
  // Tokens behind these that it has not: of a file that was joined with deltas. The one that waits
  // does not count.
  int64_t unread = 0;
  std::optional<int32_t> pending;  // the token that waits
  // All tokens of the conversation, the one that waits included, if the session keeps them.
  std::optional<std::vector<int32_t>> tokens;
  std::vector<int64_t> turn_ends;  // positions, rising
  // For people; nothing depends on them.
  int64_t created_unix_ms = 0;
  std::string made_by;  // 255 bytes at most
  // The live bytes, as StatePool::CopyOut gives them. Of a head alone: empty.
  std::string state;
  uint64_t state_bytes = 0;  // as declared; state.size() of a whole one

  int64_t length() const { return position + unread + (pending ? 1 : 0); }
};

// A conversation as far as a file has it, which a delta goes on from.
struct SessionBase {
  int64_t length = 0;  // tokens
  std::string digest;  // SHA-256 of them, as section TOKS has them: kDigestBytes
};
inline constexpr size_t kDigestBytes = 32;
SessionBase BaseOf(std::span<const int32_t> tokens);

// The file in three pieces, so that the state is not held twice.
struct EncodedSession {
  std::string head, state, tail;

  size_t bytes() const { return head.size() + state.size() + tail.size(); }
  // Up to `most` bytes from `offset` on, which end where a piece does; "" at the end.
  std::string_view Part(size_t offset, size_t most) const;
};
EncodedSession EncodeSession(SessionImage image);
// What the image, whose state is not looked at, has beyond `since`: its tokens begin with these.
EncodedSession EncodeDelta(const SessionImage& image, const SessionBase& since);

// Whether a server with this model and layout can take what the head declares: FailedPrecondition
// for another model or layout, a slot cap or a position beyond its limits; DataLoss for a state of
// another size or a token beyond the vocabulary, which no session of this model has. The tokens are
// looked at as far as they are there: none of a head alone.
absl::Status CheckSessionFits(const SessionImage& image, std::string_view model_fingerprint,
                              const StateLayout& layout, int64_t vocab_size);

// DataLoss for a whole image that fits, but whose state no session of this layout has (CheckState):
// its checksums say that it is as it was written, not by whom.
absl::Status CheckSessionState(const SessionImage& image, const StateLayout& layout);

// Reads a file whose parts arrive one after another. Holds at most twice what has arrived.
class SessionReader {
 public:
  // Called once, with the head alone, before anything behind it is taken.
  using CheckHead = std::function<absl::Status(const SessionImage& head)>;
  explicit SessionReader(CheckHead check_head) : check_head_(std::move(check_head)) {}

  // DataLoss for what is damaged, FailedPrecondition for another version, an unknown section that
  // is required or a delta, and what check_head says. After an error: the same one again.
  absl::Status Add(std::string_view part);
  // DataLoss if the end is missing. Call once.
  absl::StatusOr<SessionImage> Finish();

 private:
  enum class Stage { kPrelude, kSectionHead, kPayload, kChecksum, kEnded };

  absl::Status Take();  // what the stage wanted is in buffer_
  absl::Status BeginSection();
  absl::Status EndSection();
  absl::Status ReadHead(std::string_view payload);
  absl::Status ReadTurns(std::string_view payload);

  const CheckHead check_head_;
  absl::Status status_;
  SessionImage image_;
  uint64_t token_count_ = 0, turn_count_ = 0;  // as declared
  std::array<bool, 5> seen_{};                 // by place in kSections
  Stage stage_ = Stage::kPrelude;
  uint64_t wanted_ = 12;  // bytes of this stage
  uint64_t taken_ = 0;    // bytes of the file before this stage
  uint64_t skipped_ = 0;  // bytes of unknown sections
  std::string buffer_;
  std::string tag_, payload_;
  uint32_t crc_ = 0;
  Sha256 digest_;
  std::string hex_;  // of all before the last section, once that begins
};

}  // namespace ovq
