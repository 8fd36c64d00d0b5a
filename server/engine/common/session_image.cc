#include "server/engine/common/session_image.h"

#include <algorithm>
#include <span>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "base/binary.h"
#include "base/check.h"
#include "base/crc32c.h"
#include "base/huge_pages.h"
#include "server/engine/common/limits.h"
#include "server/store/journal.h"

namespace ovq::engine {
namespace {

constexpr std::string_view kMagic = "OVQSESS\n";
constexpr uint32_t kVersion = 1;
constexpr std::array<const char*, 5> kSections = {"HEAD", "TOKS", "TURN", "STAT", "DONE"};
enum SectionIndex : size_t { kHead, kToks, kTurn, kStat, kDone };
constexpr const char* kDelta = "DELT";      // replaces HEAD in a delta
constexpr std::string_view kForm = "form";  // optional, before TOKS
constexpr std::string_view kSign = "sign";  // optional, before STAT

constexpr uint32_t kHasPending = 1;
constexpr uint32_t kKeepsTokens = 2;
constexpr size_t kFixedHeadBytes =
    64 + 8 + 8 + 4 + 4 + 4 + 4 + 8 + 8 + 8;  // before the two strings
constexpr uint64_t kMaxHeadBytes = kFixedHeadBytes + 2 * (1 + kMaxTextBytes);
constexpr uint64_t kMaxSkippedBytes = uint64_t{1} << 20;
constexpr uint64_t kMostAhead = uint64_t{1} << 30;  // bytes of address space reserved for a state

std::string MakeJournalHead(const SessionImage& image) {
  Check(image.model_fingerprint.size() == 64, "a model's fingerprint has 64 digits");
  std::string out = image.model_fingerprint;
  Put(out, image.layout_fingerprint);
  Put(out, image.position);
  Put(out, image.slot_cap);
  Put(out, (image.pending ? kHasPending : 0) | (image.tokens ? kKeepsTokens : 0));
  Put(out, image.pending.value_or(0));
  Put(out, static_cast<uint32_t>(image.turn_ends.size()));
  Put(out, static_cast<uint64_t>(image.tokens ? image.tokens->size() : 0));
  Put(out, static_cast<uint64_t>(image.state.size()));
  Put(out, image.created_unix_ms);
  PutText(out, image.cache_policy);
  PutText(out, image.made_by);
  return out;
}

// Returns what a signature vouches for: a model and a policy make this state of these tokens.
std::string SignedClaim(const SessionImage& image, Sha256 state_digest) {
  std::string out = "OVQSIGN\n";
  out.append(image.model_fingerprint);
  Put(out, image.layout_fingerprint);
  Put(out, image.position);
  Put(out, image.slot_cap);
  Put(out, image.tokens ? kKeepsTokens : 0);
  std::span<const int32_t> consumed;
  if (image.tokens) consumed = std::span(*image.tokens).first(static_cast<size_t>(image.position));
  out.append(MakeSessionBase(consumed).digest);
  out.append(absl::HexStringToBytes(state_digest.Hex()));
  PutText(out, image.cache_policy);
  return out;
}

std::string HeadOfDelta(const SessionImage& image, const SessionBase& since) {
  std::string out = image.model_fingerprint;
  Put(out, image.layout_fingerprint);
  for (const SessionBase& end : {since, MakeSessionBase(*image.tokens)}) {
    Put(out, end.length);
    out.append(end.digest);
  }
  Put(out, image.slot_cap);
  Put(out, image.pending ? kHasPending : 0);
  Put(out, static_cast<uint32_t>(image.turn_ends.size()));
  Put(out, image.created_unix_ms);
  PutText(out, image.cache_policy);
  PutText(out, image.made_by);
  return out;
}

void PutTokensAndTurns(std::string& out, std::span<const int32_t> tokens,
                       const SessionImage& image) {
  if (!image.unfinished.empty()) PutSection(out, kForm, image.unfinished);
  std::string bytes, turns;
  for (const int32_t token : tokens) Put(bytes, token);
  PutAll(turns, image.turn_ends);
  PutSection(out, kSections[kToks], bytes);
  PutSection(out, kSections[kTurn], turns);
}

// Writes the last section; `digest` covers all bytes before it.
void PutDone(std::string& out, Sha256 digest) {
  PutSection(out, kSections[kDone], absl::HexStringToBytes(digest.Hex()));
}

bool IsOptional(std::string_view tag) { return tag[0] >= 'a' && tag[0] <= 'z'; }

}  // namespace

std::string_view EncodedSession::Part(size_t offset, size_t most) const {
  for (const std::string* piece : {&head, &state, &tail}) {
    if (offset < piece->size()) return std::string_view(*piece).substr(offset, most);
    offset -= piece->size();
  }
  return {};
}

EncodedSession EncodeSession(SessionImage image, const FleetKeys* keys) {
  EncodedSession file = EncodeAroundState(image, keys);
  file.state = std::move(image.state);
  return file;
}

EncodedSession EncodeAroundState(const SessionImage& image, const FleetKeys* keys) {
  EncodedSession file;
  file.head = kMagic;
  Put(file.head, kVersion);
  PutSection(file.head, kSections[kHead], MakeJournalHead(image));
  std::span<const int32_t> tokens;
  if (image.tokens) tokens = *image.tokens;
  PutTokensAndTurns(file.head, tokens, image);
  if (keys != nullptr) {
    Sha256 state_digest;
    state_digest.Add(image.state.data(), image.state.size());
    PutSection(file.head, kSign, keys->Sign(SignedClaim(image, std::move(state_digest))));
  }
  const std::string start = SectionStart(kSections[kStat], image.state.size());
  file.head.append(start);
  Put(file.tail, Crc32c(image.state, Crc32c(start)));
  Sha256 digest;
  for (const std::string_view piece :
       {std::string_view(file.head), std::string_view(image.state), std::string_view(file.tail)}) {
    digest.Add(piece.data(), piece.size());
  }
  PutDone(file.tail, std::move(digest));
  return file;
}

SessionBase MakeSessionBase(std::span<const int32_t> tokens) {
  std::string bytes;
  bytes.reserve(tokens.size_bytes());
  for (const int32_t token : tokens) Put(bytes, token);
  Sha256 digest;
  digest.Add(bytes.data(), bytes.size());
  return {static_cast<int64_t>(tokens.size()), absl::HexStringToBytes(digest.Hex())};
}

EncodedSession EncodeDelta(const SessionImage& image, const SessionBase& since) {
  std::string file(kMagic);
  Put(file, kVersion);
  PutSection(file, kDelta, HeadOfDelta(image, since));
  PutTokensAndTurns(file, std::span(*image.tokens).subspan(static_cast<size_t>(since.length)),
                    image);
  Sha256 digest;
  digest.Add(file.data(), file.size());
  PutDone(file, std::move(digest));
  return {.head = std::move(file), .state = {}, .tail = {}};
}

absl::Status SessionReader::Add(std::string_view part) {
  while (status_.ok() && !part.empty()) {
    const std::span<char> room = Room(part.size());
    std::ranges::copy(part.substr(0, room.size()), room.begin());
    part.remove_prefix(room.size());
    (void)AddRoom();
  }
  return status_;
}

bool SessionReader::InState() const {
  return stage_ == Stage::kPayload && tag_ == kSections[kStat];
}

std::span<char> SessionReader::Room(size_t most) {
  size_t bytes = static_cast<size_t>(std::min<uint64_t>(most, wanted_ - had_));
  if (InState() && !places_.empty()) {
    while (places_.front().empty()) places_.erase(places_.begin());
    std::span<std::byte>& place = places_.front();
    bytes = std::min(bytes, place.size());
    room_ = {reinterpret_cast<char*>(place.data()), bytes};
    place = place.subspan(bytes);
  } else {
    std::string& into = InState() ? image_.state : buffer_;
    into.resize(had_ + bytes);
    room_ = std::span(into).subspan(had_);
  }
  return room_;
}

absl::Status SessionReader::AddRoom() {
  if (!status_.ok()) return status_;
  if (stage_ == Stage::kEnded) {
    return status_ = DamagedFile("bytes behind its end, at byte ", taken_);
  }
  const std::string_view bytes(room_.data(), room_.size());
  if (stage_ == Stage::kPayload) {  // now, while the bytes are in the CPU cache
    crc_ = Crc32c(bytes, crc_);
    if (check_digest_ && hex_.empty()) digest_.Add(bytes.data(), bytes.size());
    if (InState() && ChecksSignature()) state_digest_.Add(bytes.data(), bytes.size());
  }
  had_ += bytes.size();
  // An empty payload is complete as soon as it begins.
  while (status_.ok() && stage_ != Stage::kEnded && had_ == wanted_) status_ = ProcessStage();
  return status_;
}

absl::StatusOr<SessionImage> SessionReader::Finish() {
  if (!status_.ok()) return status_;
  if (stage_ != Stage::kEnded) {
    return DamagedFile("ends at byte ", taken_ + had_, tag_.empty() ? "" : ", in section ", tag_,
                       ", expected section DONE at its end");
  }
  if (ChecksSignature()) {
    image_.state_signed = keys_->Verify(SignedClaim(image_, std::move(state_digest_)), signature_);
  }
  return std::move(image_);
}

absl::Status SessionReader::ProcessStage() {
  const Stage stage = stage_;
  std::string bytes = std::exchange(buffer_, {});
  taken_ += std::exchange(had_, 0);
  if (stage == Stage::kSectionHead) {
    tag_ = bytes.substr(0, 4);
    if (tag_ == kSections[kDone]) hex_ = digest_.Hex();
  }
  if (check_digest_ && hex_.empty() && stage != Stage::kPayload) {
    digest_.Add(bytes.data(), bytes.size());
  }
  std::string_view in = bytes;
  switch (stage) {
    case Stage::kPrelude: {
      if (!in.starts_with(kMagic)) return DamagedFile("not one, it does not begin with OVQSESS");
      in.remove_prefix(kMagic.size());
      const auto version = Get<uint32_t>(in);
      if (version != kVersion) {
        return UnfitFile("version ", version, ", this server reads version ", kVersion);
      }
      stage_ = Stage::kSectionHead;
      wanted_ = 12;
      return absl::OkStatus();
    }
    case Stage::kSectionHead:
      in.remove_prefix(4);
      wanted_ = Get<uint64_t>(in);
      crc_ = Crc32c(bytes);
      stage_ = Stage::kPayload;
      return BeginSection();
    case Stage::kPayload:
      payload_ = std::move(bytes);
      stage_ = Stage::kChecksum;
      wanted_ = 4;
      return absl::OkStatus();
    case Stage::kChecksum: {
      const auto crc = Get<uint32_t>(in);
      if (crc != crc_) {
        return DamagedFile("section ", tag_, ": checksum ", absl::Hex(crc, absl::kZeroPad8),
                           ", expected ", absl::Hex(crc_, absl::kZeroPad8));
      }
      stage_ = tag_ == kSections[kDone] ? Stage::kEnded : Stage::kSectionHead;
      wanted_ = 12;
      return EndSection();
    }
    case Stage::kEnded:
      break;
  }
  return absl::OkStatus();
}

// Checks a section's length before any byte of its payload is accepted.
absl::Status SessionReader::BeginSection() {
  for (const char c : tag_) {
    const bool letter = (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z');
    if (!letter) {
      return DamagedFile("a section's tag \"", absl::CHexEscape(tag_), "\" at byte ", taken_ - 12,
                         ", expected four letters");
    }
  }
  const size_t section = std::ranges::find(kSections, std::string_view(tag_)) - kSections.begin();
  if (!seen_[kHead] && tag_ == kDelta) {
    return UnfitFile(
        "a delta, which has no state: join it with the file that it goes on from (python3 -m "
        "ovq_client session-file FILE --join DELTA --out NEW) and import that one");
  }
  if (!seen_[kHead] && section != kHead) {
    return DamagedFile("section ", tag_, " comes first, expected HEAD");
  }
  if (section == kSections.size()) return BeginOptionalSection();
  if (std::exchange(seen_[section], true)) return DamagedFile("section ", tag_, " comes twice");
  if (section == kHead) {
    if (wanted_ >= kFixedHeadBytes + 2 && wanted_ <= kMaxHeadBytes) return absl::OkStatus();
    return DamagedFile("section HEAD: ", wanted_, " bytes, expected ", kFixedHeadBytes + 2, " to ",
                       kMaxHeadBytes);
  }
  for (size_t before = 0; section == kDone && before < kDone; ++before) {
    if (!seen_[before]) return DamagedFile("section ", kSections[before], " is missing");
  }
  const std::array<uint64_t, 5> expected = {0, 4 * token_count_, 8 * turn_count_,
                                            image_.state_bytes, 32};
  if (wanted_ != expected[section]) {
    return DamagedFile("section ", tag_, ": ", wanted_, " bytes, expected ", expected[section]);
  }
  if (section == kStat && places_.empty()) image_.state = RoomFor(std::min(wanted_, kMostAhead));
  return absl::OkStatus();
}

absl::Status SessionReader::BeginOptionalSection() {
  if (!IsOptional(tag_)) return UnfitFile("section ", tag_, " is unknown and required");
  if (wanted_ > kMaxSkippedBytes - skipped_) {
    return DamagedFile("section ", tag_, ": ", wanted_, " bytes, expected ", kMaxSkippedBytes,
                       " at most in all optional sections");
  }
  skipped_ += wanted_;
  if (tag_ == kForm && std::exchange(seen_form_, true)) {
    return DamagedFile("section form comes twice");
  }
  if (tag_ == kForm && wanted_ == 0) return DamagedFile("section form is empty");
  if (tag_ != kSign) return absl::OkStatus();
  if (std::exchange(seen_sign_, true)) return DamagedFile("section sign comes twice");
  if (seen_[kStat]) return DamagedFile("section sign comes behind STAT, expected it before");
  if (wanted_ == FleetKeys::kSignatureBytes) return absl::OkStatus();
  return DamagedFile("section sign: ", wanted_, " bytes, expected ", FleetKeys::kSignatureBytes);
}

absl::Status SessionReader::EndSection() {
  std::string payload = std::exchange(payload_, {});
  if (tag_ == kSections[kHead]) return ReadHead(payload);
  if (tag_ == kSections[kTurn]) return ReadTurns(payload);
  if (tag_ == kForm) image_.unfinished = std::move(payload);
  if (tag_ == kSign) signature_ = std::move(payload);
  if (tag_ == kSections[kToks] && image_.tokens) {
    image_.tokens = GetAll<int32_t>(payload);
    if (image_.pending && image_.tokens->back() != *image_.pending) {
      return DamagedFile("the last token is ", image_.tokens->back(),
                         ", expected the one that waits, ", *image_.pending);
    }
  }
  if (check_digest_ && tag_ == kSections[kDone] && payload != absl::HexStringToBytes(hex_)) {
    return DamagedFile("SHA-256 ", absl::BytesToHexString(payload), ", expected ", hex_);
  }
  return absl::OkStatus();
}

absl::Status SessionReader::ReadHead(std::string_view payload) {
  image_.model_fingerprint = payload.substr(0, 64);
  payload.remove_prefix(64);
  image_.layout_fingerprint = Get<uint64_t>(payload);
  image_.position = Get<int64_t>(payload);
  image_.slot_cap = Get<int32_t>(payload);
  const auto flags = Get<uint32_t>(payload);
  const auto pending = Get<int32_t>(payload);
  turn_count_ = Get<uint32_t>(payload);
  token_count_ = Get<uint64_t>(payload);
  image_.state_bytes = Get<uint64_t>(payload);
  image_.created_unix_ms = Get<int64_t>(payload);
  for (std::string* text : {&image_.cache_policy, &image_.made_by}) {
    if (!GetText(payload, *text)) return DamagedFile("section HEAD: a text goes beyond its end");
  }
  if (!payload.empty()) return DamagedFile("section HEAD: ", payload.size(), " bytes too many");
  if ((flags & ~(kHasPending | kKeepsTokens)) != 0) {
    return DamagedFile("section HEAD: flags ", flags, ", expected 0 to 3");
  }
  if (image_.position < 0 || image_.position > static_cast<int64_t>(kMaxInfoPosition)) {
    return UnfitFile("position ", image_.position, ", expected 0 to ", kMaxInfoPosition);
  }
  if ((flags & kHasPending) != 0) image_.pending = pending;
  const bool keeps = (flags & kKeepsTokens) != 0;
  const uint64_t least = keeps ? static_cast<uint64_t>(image_.length()) : 0;
  const uint64_t most = keeps ? kMaxInfoPosition + 1 : 0;
  if (token_count_ < least || token_count_ > most) {
    return DamagedFile("section HEAD: ", token_count_, " tokens, expected ", least,
                       keeps ? " or more" : "");
  }
  image_.unread = static_cast<int64_t>(token_count_ - least);
  if (keeps) image_.tokens.emplace();
  if (turn_count_ > store::kMaxTurnEnds) {
    return DamagedFile("section HEAD: ", turn_count_, " turns, expected ", store::kMaxTurnEnds,
                       " at most");
  }
  const absl::Status status = check_head_(image_);
  has_head_ = status.ok();
  return status;
}

absl::Status SessionReader::ReadTurns(std::string_view payload) {
  image_.turn_ends = GetAll<int64_t>(payload);
  int64_t before = 0;
  for (size_t i = 0; i < image_.turn_ends.size(); ++i) {
    const int64_t end = image_.turn_ends[i];
    if (end <= before || end > image_.length()) {
      return DamagedFile("turn ", i, " ends at ", end, ", expected ", before + 1, " to ",
                         image_.length());
    }
    before = end;
  }
  return absl::OkStatus();
}

}  // namespace ovq::engine
