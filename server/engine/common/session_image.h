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

namespace ovq {

struct SessionImage {
  std::string model_fingerprint;    // LanguageModel::fingerprint, 64 hex digits
  uint64_t layout_fingerprint = 0;  // StateLayout::fingerprint
  std::string memory;               // ModelVariant::name; 255 bytes at most
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
SessionBase MakeSessionBase(std::span<const int32_t> tokens);

// The file in three pieces, so that the state is not held twice.
struct EncodedSession {
  std::string head, state, tail;

  size_t bytes() const { return head.size() + state.size() + tail.size(); }
  // Up to `most` bytes from `offset` on, which end where a piece does; "" at the end.
  std::string_view Part(size_t offset, size_t most) const;
};
EncodedSession EncodeSession(SessionImage image);
// The same but for the state, which stays where it is: what stands before it and behind it.
EncodedSession EncodeAroundState(const SessionImage& image);
// What the image, whose state is not looked at, has beyond `since`: its tokens begin with these.
EncodedSession EncodeDelta(const SessionImage& image, const SessionBase& since);

// Reads a file whose parts arrive one after another. Holds at most twice what has arrived, and
// address space for a state.
class SessionReader {
 public:
  // Called once, with the head alone, before anything behind it is taken.
  using CheckHead = std::function<absl::Status(const SessionImage& head)>;
  // digest: whether DONE is compared with the bytes before it. The checksums of the sections always
  // are, and cover every byte.
  explicit SessionReader(CheckHead check_head, bool digest = true)
      : check_head_(std::move(check_head)), check_digest_(digest) {}

  // DataLoss for what is damaged, FailedPrecondition for another version, an unknown section that
  // is required or a delta, and what check_head says. After an error: the same one again.
  absl::Status Add(std::string_view part);
  // Add without a copy: where the next bytes belong, `most` or fewer, but some. They are added once
  // all of them are there.
  std::span<char> Room(size_t most);
  absl::Status AddRoom();

  // The head was read, and passed.
  bool has_head() const { return has_head_; }
  const SessionImage& head() const { return image_; }
  // Once, with the head just read: the state's bytes go there, end to end, and not into the image.
  // As many as the head says.
  void PutStateInto(std::vector<std::span<std::byte>> places) { places_ = std::move(places); }
  // DataLoss if the end is missing. Call once.
  absl::StatusOr<SessionImage> Finish();

 private:
  enum class Stage { kPrelude, kSectionHead, kPayload, kChecksum, kEnded };

  bool InState() const;
  absl::Status ProcessStage();  // what the stage wanted is there
  absl::Status BeginSection();
  absl::Status EndSection();
  absl::Status ReadHead(std::string_view payload);
  absl::Status ReadTurns(std::string_view payload);

  const CheckHead check_head_;
  const bool check_digest_;
  absl::Status status_;
  SessionImage image_;
  bool has_head_ = false;
  std::vector<std::span<std::byte>> places_;   // of the state, what is left of them
  uint64_t token_count_ = 0, turn_count_ = 0;  // as declared
  std::array<bool, 5> seen_{};                 // by place in kSections
  Stage stage_ = Stage::kPrelude;
  uint64_t wanted_ = 12;  // bytes of this stage
  uint64_t had_ = 0;      // of them
  uint64_t taken_ = 0;    // bytes of the file before this stage
  uint64_t skipped_ = 0;  // bytes of unknown sections
  std::span<char> room_;  // as Room gave it
  std::string buffer_;    // of this stage, but for the state
  std::string tag_, payload_;
  uint32_t crc_ = 0;
  Sha256 digest_;
  std::string hex_;  // of all before the last section, once that begins
};

}  // namespace ovq
