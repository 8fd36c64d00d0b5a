// Session files, which exports write and imports read (docs/session-format.md): the image of a
// session, its encoding, and an incremental reader.
//
// An image has no sampler state: draws are a function of the request's (seed, position), and
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
#include "absl/strings/str_cat.h"
#include "base/sha256.h"
#include "server/engine/common/fleet_keys.h"

namespace ovq::engine {

// Errors of session files: of a file that nobody wrote so, and of one that does not fit this
// server.
template <class... Args>
absl::Status DamagedFile(const Args&... what) {
  return absl::DataLossError(absl::StrCat("session file: ", what...));
}
template <class... Args>
absl::Status UnfitFile(const Args&... what) {
  return absl::FailedPreconditionError(absl::StrCat("session file: ", what...));
}

struct SessionImage {
  std::string model_fingerprint;    // LanguageModel::fingerprint, 64 hex digits
  uint64_t layout_fingerprint = 0;  // StateLayout::fingerprint
  std::string cache_policy;         // ModelVariant::name; 255 bytes at most
  int32_t slot_cap = 0;             // 0: no layer has one
  int64_t position = 0;             // tokens consumed by the state
  // Tokens after these that the state has not consumed, without the pending one: of a file that was
  // joined with deltas.
  int64_t unread = 0;
  std::optional<int32_t> pending;  // last token, not consumed yet
  // All tokens of the conversation with the pending one, if the session keeps them.
  std::optional<std::vector<int32_t>> tokens;
  std::vector<int64_t> turn_ends;  // positions, ascending
  // EncodeUnfinished of the answer that its conversation ends with; "" for none. Not decoded here.
  std::string unfinished;
  // Informational; nothing depends on these two.
  int64_t created_unix_ms = 0;
  std::string made_by;  // 255 bytes at most
  // Live bytes in the order of StatePool::CopyOut; empty if only the head was read.
  std::string state;
  uint64_t state_bytes = 0;  // as declared in the head; state.size() of a whole image
  // A key of the fleet has signed that the state is what the tokens up to `position` make.
  bool state_signed = false;

  int64_t length() const { return position + unread + (pending ? 1 : 0); }
};

// The conversation in an earlier file, which a delta extends.
struct SessionBase {
  int64_t length = 0;  // tokens
  std::string digest;  // SHA-256 of the tokens as encoded in section TOKS: kDigestBytes
};
inline constexpr size_t kDigestBytes = 32;
SessionBase MakeSessionBase(std::span<const int32_t> tokens);

// A file in three pieces, so that the state is not copied.
struct EncodedSession {
  std::string head, state, tail;

  size_t bytes() const { return head.size() + state.size() + tail.size(); }
  // Up to `most` bytes from `offset` on, within one piece; "" at the end of the file.
  std::string_view Part(size_t offset, size_t most) const;
};
// keys: sign the state; null: nobody does.
EncodedSession EncodeSession(SessionImage image, const FleetKeys* keys = nullptr);
// Encodes the head and tail of the file; image.state itself is the middle piece, and is not copied.
EncodedSession EncodeAroundState(const SessionImage& image, const FleetKeys* keys = nullptr);
// Encodes a delta: what the image has beyond `since`. The image's tokens must begin with those of
// `since`; its state is ignored.
EncodedSession EncodeDelta(const SessionImage& image, const SessionBase& since);

// Reads a session file from consecutive parts. Holds at most twice the bytes that have arrived, and
// address space for a state.
class SessionReader {
 public:
  // Called once, with the head, before any byte after the head is accepted.
  using CheckHead = std::function<absl::Status(const SessionImage& head)>;
  // digest: whether to compare the digest in section DONE. The sections' checksums cover every byte
  // and are always compared. keys: whose signatures are known; null: none are. The keys must
  // outlive the reader.
  explicit SessionReader(CheckHead check_head, bool digest = true, const FleetKeys* keys = nullptr)
      : check_head_(std::move(check_head)), check_digest_(digest), keys_(keys) {}

  // Reads the next part. DataLoss for a damaged file; FailedPrecondition for another version, an
  // unknown required section, or a delta; and the errors of check_head. After an error every call
  // returns that error.
  absl::Status Add(std::string_view part);
  // Add without a copy: Room returns the buffer for the next bytes, between 1 and `most`; the
  // caller fills it and calls AddRoom.
  std::span<char> Room(size_t most);
  absl::Status AddRoom();

  // Whether the head was read and accepted by check_head.
  bool has_head() const { return has_head_; }
  const SessionImage& head() const { return image_; }
  // Directs the state's bytes into these places, end to end, instead of into the image. Call at
  // most once, when the head has just been read; the places have head().state_bytes bytes in all.
  void PutStateInto(std::vector<std::span<std::byte>> places) { places_ = std::move(places); }
  // DataLoss if the end is missing. Call once.
  absl::StatusOr<SessionImage> Finish();

 private:
  enum class Stage { kPrelude, kSectionHead, kPayload, kChecksum, kEnded };

  bool InState() const;
  absl::Status ProcessStage();  // all bytes of the stage have arrived
  absl::Status BeginSection();
  absl::Status EndSection();
  absl::Status ReadHead(std::string_view payload);
  absl::Status ReadTurns(std::string_view payload);
  absl::Status BeginOptionalSection();
  // Whether the bytes of the state are hashed for the signature that came before them.
  bool ChecksSignature() const { return keys_ != nullptr && !signature_.empty(); }

  const CheckHead check_head_;
  const bool check_digest_;
  const FleetKeys* const keys_;
  absl::Status status_;
  SessionImage image_;
  bool has_head_ = false;
  std::vector<std::span<std::byte>> places_;   // for the rest of the state
  uint64_t token_count_ = 0, turn_count_ = 0;  // as declared
  std::array<bool, 5> seen_{};                 // by index in kSections
  bool seen_form_ = false, seen_sign_ = false;
  Stage stage_ = Stage::kPrelude;
  uint64_t wanted_ = 12;  // bytes of this stage
  uint64_t had_ = 0;      // of which have arrived
  uint64_t taken_ = 0;    // bytes of the file before this stage
  uint64_t skipped_ = 0;  // bytes of unknown sections
  std::span<char> room_;  // the last result of Room
  std::string buffer_;    // bytes of this stage, except the state's
  std::string tag_, payload_;
  uint32_t crc_ = 0;
  Sha256 digest_;
  std::string signature_;  // payload of section sign
  Sha256 state_digest_;
  std::string hex_;  // digest of all bytes before the last section, once that begins
};

}  // namespace ovq::engine
