// Session files: they are read as written, and any other bytes are refused.
#include "server/engine/common/session_image.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <functional>
#include <iterator>

#include "absl/strings/escaping.h"
#include "base/crc32c.h"
#include "kernels/mixers/ovq/ovq.h"
#include "server/engine/common/validate.h"
#include "tests/folders.h"

namespace ovq::engine {
namespace {

using ::testing::HasSubstr;

std::string Golden(const std::string& name = "small") {
  std::ifstream file(GoldenFolder() + "/session/" + name + ".ovqs", std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

SessionImage Small() {
  SessionImage image;
  for (int i = 0; i < 4; ++i) image.model_fingerprint += "0123456789abcdef";
  image.layout_fingerprint = 0x0123456789abcdef;
  image.cache_policy = "ovq";
  image.slot_cap = 64;
  image.position = 6;
  image.pending = 3;
  image.tokens = {5, 0, 41, 7, 7, 12, 3};
  image.turn_ends = {3, 7};
  image.created_unix_ms = 1'700'000'000'123;
  image.made_by = "ovq-server test";
  for (int i = 0; i < 100; ++i) image.state.push_back(static_cast<char>(i * 31));
  return image;
}

std::string Bytes(const EncodedSession& file, size_t most = 1 << 20) {
  std::string bytes;
  while (bytes.size() < file.bytes()) bytes.append(file.Part(bytes.size(), most));
  return bytes;
}
std::string Bytes(const SessionImage& image) { return Bytes(EncodeSession(image)); }

absl::StatusOr<SessionImage> Read(std::string_view bytes, size_t part = 1 << 20,
                                  const FleetKeys* keys = nullptr) {
  SessionReader reader([](const SessionImage&) { return absl::OkStatus(); }, /*digest=*/true, keys);
  for (; !bytes.empty(); bytes.remove_prefix(std::min(part, bytes.size()))) {
    if (absl::Status status = reader.Add(bytes.substr(0, part)); !status.ok()) return status;
  }
  return reader.Finish();
}

void ExpectRefused(const std::string& bytes, absl::StatusCode code, const std::string& message) {
  const absl::Status status = Read(bytes).status();
  EXPECT_EQ(status.code(), code) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr(message));
}
constexpr auto kDamaged = absl::StatusCode::kDataLoss;
constexpr auto kUnfit = absl::StatusCode::kFailedPrecondition;

// Bytes of a section with a valid checksum.
std::string Section(const std::string& tag, const std::string& payload, uint64_t declared) {
  std::string out = tag;
  for (int i = 0; i < 8; ++i) out.push_back(static_cast<char>(declared >> (8 * i)));
  out += payload;
  const uint32_t crc = Crc32c(out);
  for (int i = 0; i < 4; ++i) out.push_back(static_cast<char>(crc >> (8 * i)));
  return out;
}
// The file with one byte of its head replaced and the head's checksum made valid.
std::string WithHeadByte(size_t at, char value) {
  std::string bytes = Golden();
  const size_t begin = 12, head = bytes.find("TOKS") - begin;
  std::string payload = bytes.substr(begin + 12, head - 16);
  payload[at] = value;
  return bytes.replace(begin, head, Section("HEAD", payload, payload.size()));
}

TEST(SessionImage, IsTheBytesThatAnotherProgramWrites) {
  EXPECT_EQ(absl::BytesToHexString(Bytes(Small())), absl::BytesToHexString(Golden()));
  EXPECT_EQ(Bytes(EncodeSession(Small()), 7), Golden());
}

// The small image some tokens later.
SessionImage Longer() {
  SessionImage image = Small();
  image.unread = 3;
  image.pending = 2;
  image.tokens->insert(image.tokens->end(), {1, 40, 2});
  image.turn_ends.insert(image.turn_ends.end(), {9, 10});
  return image;
}

TEST(SessionImage, ADeltaIsTheBytesThatAnotherProgramWrites) {
  EXPECT_EQ(absl::BytesToHexString(Bytes(EncodeDelta(Longer(), MakeSessionBase(*Small().tokens)))),
            absl::BytesToHexString(Golden("delta")));
}

TEST(SessionImage, AJoinedFileHasTokensThatItsStateHasNotRead) {
  const absl::StatusOr<SessionImage> image = Read(Golden("joined"));
  ASSERT_TRUE(image.ok()) << image.status();
  EXPECT_EQ(image->position, 6);
  EXPECT_EQ(image->unread, 3);
  EXPECT_EQ(image->length(), 10);
  EXPECT_EQ(image->tokens, Longer().tokens);
  EXPECT_EQ(image->turn_ends, Longer().turn_ends);
  EXPECT_EQ(Bytes(*image), Golden("joined"));
}

// A delta is refused without a look at its contents.
TEST(SessionImage, ADeltaAloneIsNoSession) {
  const std::string delta = Golden("delta"), prelude = delta.substr(0, 12);
  const std::string words = "a delta, which has no state: join it with the file";
  ExpectRefused(delta, kUnfit, words);
  ExpectRefused(prelude + Section("DELT", "", uint64_t{1} << 62), kUnfit, words);
  ExpectRefused(Golden() + delta, kDamaged, "bytes behind its end");
  const std::string head = Golden().substr(0, Golden().find("TOKS"));
  ExpectRefused(head + delta.substr(12), kUnfit, "section DELT is unknown and required");
}

// The key of tests/golden/session/make.py, as a key file has it.
std::string GoldenKey() {
  std::string key;
  for (int i = 0; i < 32; ++i) key.push_back(static_cast<char>(i));
  return absl::BytesToHexString(key);
}
std::string OtherKey(char digit) { return std::string(64, digit); }

bool IsSigned(const std::string& bytes, const std::string& keys, size_t part = 1 << 20) {
  const absl::StatusOr<FleetKeys> known = FleetKeys::Parse(keys);
  EXPECT_TRUE(known.ok()) << known.status();
  const absl::StatusOr<SessionImage> image = Read(bytes, part, &*known);
  EXPECT_TRUE(image.ok()) << image.status();
  return image.ok() && image->state_signed;
}

TEST(SignedSession, IsTheBytesThatAnotherProgramWrites) {
  const FleetKeys keys = *FleetKeys::Parse(GoldenKey());
  EXPECT_EQ(absl::BytesToHexString(Bytes(EncodeSession(Small(), &keys))),
            absl::BytesToHexString(Golden("signed")));
}

TEST(SignedSession, IsKnownByAnyKeyOfTheFleetAndByNoOther) {
  for (const size_t part : {1, 13, 100000}) {
    EXPECT_TRUE(IsSigned(Golden("signed"), GoldenKey(), part)) << part;
  }
  EXPECT_TRUE(IsSigned(Golden("signed"), OtherKey('1') + "\n" + GoldenKey()));
  EXPECT_FALSE(IsSigned(Golden("signed"), OtherKey('1') + "\n" + OtherKey('2')));
  EXPECT_FALSE(IsSigned(Golden(), GoldenKey())) << "it has no signature";
  EXPECT_FALSE(Read(Golden("signed"))->state_signed) << "the reader has no keys";
}

TEST(SignedSession, TheFirstKeySigns) {
  const std::string old_key = OtherKey('1'), new_key = OtherKey('2');
  const FleetKeys rotated = *FleetKeys::Parse(new_key + "\n" + old_key);
  const std::string bytes = Bytes(EncodeSession(Small(), &rotated));
  EXPECT_TRUE(IsSigned(bytes, new_key));
  EXPECT_FALSE(IsSigned(bytes, old_key));
}

// The tokens that a delta brings are read by whoever imports the file, so that nothing is trusted.
TEST(SignedSession, StaysSoWhenItIsJoinedWithItsDeltas) {
  EXPECT_TRUE(IsSigned(Golden("signed-joined"), GoldenKey()));
  EXPECT_FALSE(IsSigned(Golden("joined"), GoldenKey()));
}

TEST(SignedSession, EveryFlippedBitIsFound) {
  const std::string whole = Golden("signed");
  for (size_t i = 0; i < 8 * whole.size(); ++i) {
    std::string bytes = whole;
    bytes[i / 8] = static_cast<char>(bytes[i / 8] ^ (1 << i % 8));
    EXPECT_FALSE(Read(bytes).ok()) << "bit " << i;
  }
}

// Encodes the image with another's signature, as one does who can compute checksums but has no key.
std::string WithSignatureFrom(const std::string& signed_file, const SessionImage& image) {
  const size_t begin = signed_file.find("sign");
  const std::string signature = signed_file.substr(begin, signed_file.find("STAT") - begin);
  std::string bytes = Bytes(image);
  bytes.insert(bytes.find("STAT"), signature);
  bytes.erase(bytes.find("DONE"));
  Sha256 digest;
  digest.Add(bytes.data(), bytes.size());
  return bytes + Section("DONE", absl::HexStringToBytes(digest.Hex()), 32);
}

TEST(SignedSession, NoOtherStateHasItsSignature) {
  const std::string whole = Golden("signed");
  EXPECT_TRUE(IsSigned(WithSignatureFrom(whole, Small()), GoldenKey()));
  const auto expect_unsigned = [&](const char* what,
                                   const std::function<void(SessionImage&)>& change) {
    SessionImage image = Small();
    change(image);
    EXPECT_FALSE(IsSigned(WithSignatureFrom(whole, image), GoldenKey())) << what;
  };
  for (size_t bit = 0; bit < 8 * Small().state.size(); ++bit) {
    expect_unsigned("state", [bit](SessionImage& image) {
      image.state[bit / 8] = static_cast<char>(image.state[bit / 8] ^ (1 << bit % 8));
    });
  }
  expect_unsigned("shorter state", [](SessionImage& image) { image.state.pop_back(); });
  for (size_t i = 0; i < 6; ++i) {
    expect_unsigned("token", [i](SessionImage& image) { ++image.tokens->at(i); });
  }
  expect_unsigned("position", [](SessionImage& image) { --image.position; });
  expect_unsigned("no tokens", [](SessionImage& image) { image.tokens.reset(); });
  expect_unsigned("model", [](SessionImage& image) { image.model_fingerprint[5] = 'f'; });
  expect_unsigned("layout", [](SessionImage& image) { ++image.layout_fingerprint; });
  expect_unsigned("policy", [](SessionImage& image) { image.cache_policy = "ovp"; });
  expect_unsigned("slot cap", [](SessionImage& image) { ++image.slot_cap; });
}

// Nothing is said of what the state has not read: callers may say that themselves.
TEST(SignedSession, MayGoOnWithOtherTokens) {
  SessionImage image = Small();
  image.pending = image.tokens->back() = 40;
  image.turn_ends = {2};
  image.made_by = "someone";
  EXPECT_TRUE(IsSigned(WithSignatureFrom(Golden("signed"), image), GoldenKey()));
}

TEST(SignedSession, ASignatureHasItsPlaceAndItsSize) {
  const auto insert = [](const char* before, const std::string& section) {
    std::string bytes = Golden("signed");
    return bytes.insert(bytes.find(before), section);
  };
  const std::string signature = Section("sign", std::string(32, 'x'), 32);
  ExpectRefused(insert("TOKS", signature), kDamaged, "section sign comes twice");
  std::string bytes = Golden();
  bytes.insert(bytes.find("DONE"), signature);
  ExpectRefused(bytes, kDamaged, "section sign comes behind STAT, expected it before");
  bytes = Golden();
  bytes.insert(bytes.find("STAT"), Section("sign", std::string(33, 'x'), 33));
  ExpectRefused(bytes, kDamaged, "section sign: 33 bytes, expected 32");
  bytes = Golden();
  bytes.insert(bytes.find("STAT"), Section("sign", "", 0));
  ExpectRefused(bytes, kDamaged, "section sign: 0 bytes, expected 32");
}

TEST(FleetKeys, AreLinesOfHexDigits) {
  const std::string key = OtherKey('a');
  EXPECT_TRUE(FleetKeys::Parse(key).ok());
  EXPECT_TRUE(FleetKeys::Parse("# ours\n\n  " + key + "\r\n" + std::string(256, 'B') + "\n").ok());
  const auto refused = [](const std::string& text) {
    const absl::Status status = FleetKeys::Parse(text).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
    return std::string(status.message());
  };
  EXPECT_THAT(refused(""), HasSubstr("expected a line with a key"));
  EXPECT_THAT(refused("# none\n"), HasSubstr("expected a line with a key"));
  const std::string expected = "expected a key of 64 to 256 hex digits";
  EXPECT_THAT(refused(key + "\n" + key.substr(2)), HasSubstr("line 2: " + expected));
  EXPECT_THAT(refused(key + "a"), HasSubstr(expected));
  EXPECT_THAT(refused(std::string(258, 'a')), HasSubstr("got 258 characters"));
  EXPECT_THAT(refused(std::string(64, 'g')), testing::Not(HasSubstr("ggg"))) << "keys stay secret";
  std::string many;
  for (int i = 0; i < 17; ++i) many += key + "\n";
  EXPECT_THAT(refused(many), HasSubstr("line 17: expected 16 keys at most"));
}

TEST(SessionImage, IsReadInPartsOfAnySize) {
  for (const size_t part : {1, 2, 13, 64, 100000}) {
    const absl::StatusOr<SessionImage> image = Read(Golden(), part);
    ASSERT_TRUE(image.ok()) << image.status();
    EXPECT_EQ(Bytes(*image), Golden());
    EXPECT_EQ(image->state_bytes, image->state.size());
  }
}

TEST(SessionImage, WithoutTokensOrOneThatWaits) {
  SessionImage image = Small();
  image.tokens.reset();
  image.pending.reset();
  image.turn_ends.clear();
  image.state.clear();
  const absl::StatusOr<SessionImage> read = Read(Bytes(image));
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->tokens, std::nullopt);
  EXPECT_EQ(read->pending, std::nullopt);
  image.position = 0;
  image.tokens.emplace();  // the session keeps tokens, and has none yet
  EXPECT_EQ(Read(Bytes(image))->tokens, image.tokens);
}

TEST(SessionImage, EveryFlippedBitIsFound) {
  const std::string whole = Golden();
  for (size_t i = 0; i < 8 * whole.size(); ++i) {
    std::string bytes = whole;
    bytes[i / 8] = static_cast<char>(bytes[i / 8] ^ (1 << i % 8));
    EXPECT_FALSE(Read(bytes).ok()) << "bit " << i;
  }
}

TEST(SessionImage, EveryMissingByteIsFound) {
  const std::string whole = Golden();
  for (size_t n = 0; n < whole.size(); ++n) {
    EXPECT_EQ(Read(whole.substr(0, n)).status().code(), kDamaged) << n;
  }
  ExpectRefused(whole.substr(0, whole.find("STAT") + 20), kDamaged, "in section STAT");
  ExpectRefused(whole + "x", kDamaged, "bytes behind its end");
}

TEST(SessionImage, RefusalsSayWhatIsWrong) {
  std::string bytes = Golden();
  ExpectRefused("PK\3\4 something else", kDamaged, "does not begin with OVQSESS");
  bytes[8] = 2;
  ExpectRefused(bytes, kUnfit, "version 2, this server reads version 1");
  bytes = Golden();
  bytes[bytes.find("STAT") + 20] ^= 1;
  ExpectRefused(bytes, kDamaged, "section STAT: checksum");
  bytes = Golden();
  bytes.insert(bytes.find("STAT"), Section("note", "hi", 2));
  ExpectRefused(bytes, kDamaged, "SHA-256");  // skipped, but part of the digest
  bytes = Golden();
  bytes.insert(bytes.find("STAT"), Section("NOTE", "hi", 2));
  ExpectRefused(bytes, kUnfit, "section NOTE is unknown and required");
  bytes = Golden();
  bytes.insert(bytes.find("STAT"), Section("TURN", "", 0));
  ExpectRefused(bytes, kDamaged, "section TURN comes twice");
  bytes = Golden();
  bytes.erase(bytes.find("TURN"), bytes.find("STAT") - bytes.find("TURN"));
  ExpectRefused(bytes, kDamaged, "section TURN is missing");
}

TEST(SessionImage, OptionalSectionsAreSkipped) {
  std::string bytes = Golden();
  bytes.erase(bytes.find("DONE"));
  bytes += Section("note", "hi", 2);
  Sha256 digest;
  digest.Add(bytes.data(), bytes.size());
  bytes += Section("DONE", absl::HexStringToBytes(digest.Hex()), 32);
  const absl::StatusOr<SessionImage> image = Read(bytes);
  ASSERT_TRUE(image.ok()) << image.status();
  EXPECT_EQ(Bytes(*image), Golden());
}

TEST(SessionImage, AnUnfinishedAnswerGoesAlong) {
  SessionImage image = Small();
  image.unfinished = std::string("\1\0\0\0\3\0\0\0", 8) + "any bytes";
  const std::string bytes = Bytes(image);
  const absl::StatusOr<SessionImage> again = Read(bytes, 7);
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(again->unfinished, image.unfinished);
  EXPECT_EQ(Bytes(*again), bytes);
  const std::string head = Golden().substr(0, Golden().find("TOKS"));
  const std::string form =
      bytes.substr(bytes.find("form"), bytes.find("TOKS") - bytes.find("form"));
  ExpectRefused(head + form + form, kDamaged, "section form comes twice");
  ExpectRefused(head + Section("form", "", 0), kDamaged, "section form is empty");
  for (size_t at = bytes.find("form"); at < bytes.find("TOKS"); ++at) {
    std::string flipped = bytes;
    flipped[at] = static_cast<char>(flipped[at] ^ 4);
    EXPECT_FALSE(Read(flipped).ok()) << at;
  }
}

TEST(SessionImage, LengthsAreCheckedBeforeTheirBytes) {
  const std::string head = Golden().substr(0, Golden().find("TOKS"));
  const uint64_t huge = uint64_t{1} << 62;
  ExpectRefused(head + Section("STAT", "", huge), kDamaged, "bytes, expected 100");
  ExpectRefused(head + Section("TOKS", "", huge), kDamaged, "bytes, expected 28");
  ExpectRefused(head + Section("note", "", huge), kDamaged, "expected 1048576 at most");
  ExpectRefused(head.substr(0, 12) + Section("HEAD", "", huge), kDamaged, "section HEAD");
}

TEST(SessionImage, HeadsThatCannotBe) {
  ExpectRefused(WithHeadByte(84, 7), kDamaged, "flags 7");
  ExpectRefused(WithHeadByte(72, 7), kDamaged, "7 tokens, expected 8 or more");
  ExpectRefused(WithHeadByte(84, 1), kDamaged, "7 tokens, expected 0");
  ExpectRefused(WithHeadByte(102, 2), kDamaged, "tokens, expected 7 or more");
  ExpectRefused(WithHeadByte(103, '\x80'), kDamaged, "tokens, expected 7 or more");
  ExpectRefused(WithHeadByte(79, '\x80'), kUnfit, "position -");
  ExpectRefused(WithHeadByte(93, 2), kDamaged, "turns, expected 256 at most");
  ExpectRefused(WithHeadByte(88, 4), kDamaged, "the last token is 3");
  ExpectRefused(WithHeadByte(120, '\xff'), kDamaged, "a text goes beyond its end");
}

TEST(SessionImage, TurnsRise) {
  for (const std::vector<int64_t>& ends : std::vector<std::vector<int64_t>>{{3, 3}, {0}, {8}}) {
    SessionImage image = Small();
    image.turn_ends = ends;
    ExpectRefused(Bytes(image), kDamaged, "ends at");
  }
}

TEST(SessionImage, TheHeadIsAskedAboutBeforeTheRest) {
  SessionReader reader([](const SessionImage& head) {
    EXPECT_EQ(head.cache_policy, "ovq");
    EXPECT_TRUE(head.state.empty());
    return absl::FailedPreconditionError("no room");
  });
  const std::string head = Golden().substr(0, Golden().find("TOKS"));
  EXPECT_EQ(reader.Add(head).message(), "no room");
  EXPECT_EQ(reader.Add("more").message(), "no room");
  EXPECT_EQ(reader.Finish().status().message(), "no room");
}

model::StateLayout LayoutOf(const kernels::Growth& growth) {
  const kernels::MixerState state{
      .fixed = kernels::StateFields({{"fixed", kernels::DType::kU32, {3}}}),
      .growth = growth,
      .block = kernels::StateFields({{"rows", kernels::DType::kU32, {kernels::kBlockSlots}}})};
  return model::StateLayout({state}, {.max_slot_cap = 100, .max_unbounded_tokens = 3000});
}

class SessionFits : public ::testing::Test {
 protected:
  explicit SessionFits(const kernels::Growth& growth = kernels::GrowsByChunk(8, 64))
      : layout_(LayoutOf(growth)) {
    image_.layout_fingerprint = layout_.fingerprint();
    image_.slot_cap = layout_.has_slot_cap() ? 64 : 0;
    image_.state_bytes = layout_.live_bytes_at(image_.position, image_.slot_cap);
  }
  absl::Status Check() const {
    return CheckSessionFits(image_, Small().model_fingerprint, layout_, /*vocab_size=*/42);
  }
  void ExpectUnfit(absl::StatusCode code, const std::string& message) const {
    EXPECT_EQ(Check().code(), code) << Check();
    EXPECT_THAT(std::string(Check().message()), HasSubstr(message));
  }

  const model::StateLayout layout_;
  SessionImage image_ = Small();
};

TEST_F(SessionFits, ItsOwnServer) { EXPECT_EQ(Check(), absl::OkStatus()); }

TEST_F(SessionFits, NotAnotherModel) {
  image_.model_fingerprint[0] = 'f';
  ExpectUnfit(kUnfit, "of the model f123456789abcdef");
  image_.model_fingerprint[1] = '\n';  // the message escapes such bytes
  ExpectUnfit(kUnfit, "of the model f\\n23456789abcdef");
}

TEST_F(SessionFits, NotAnotherLayout) {
  ++image_.layout_fingerprint;
  ExpectUnfit(kUnfit, "states are laid out as ");
  ExpectUnfit(kUnfit, ": expected a server with the same --state-dtype");
}

TEST_F(SessionFits, NoSlotCapBeyondTheServers) {
  for (const int32_t cap : {-1, 0, 1, 101}) {
    image_.slot_cap = cap;
    ExpectUnfit(kUnfit, "this server takes 2 to 100");
  }
}

TEST_F(SessionFits, NoPositionThatCannotBeComputedWith) {
  for (const int64_t position : {int64_t{-1}, int64_t{1} << 49}) {
    image_.position = position;
    ExpectUnfit(kUnfit, "this server takes 0 to 281474976710656");
  }
}

TEST_F(SessionFits, NoMoreUnreadTokensThanPositions) {
  image_.unread = (int64_t{1} << 48) - 5;
  ExpectUnfit(kUnfit, "tokens behind position 6, this server takes 0 to 281474976710650");
  image_.unread = -1;
  ExpectUnfit(kUnfit, "-1 tokens behind position 6");
}

TEST_F(SessionFits, NoStateOfAnotherSize) {
  ++image_.state_bytes;
  ExpectUnfit(kDamaged, "bytes, expected 256 at position 6");
}

TEST_F(SessionFits, NoTokenBeyondTheVocabulary) {
  image_.tokens->at(2) = 42;
  ExpectUnfit(kDamaged, "token 2 is 42, expected 0 to 41");
  image_.pending = -1;
  ExpectUnfit(kDamaged, "the token that waits is -1, expected 0 to 41");
}

class SessionFitsUncapped : public SessionFits {
 protected:
  SessionFitsUncapped() : SessionFits(kernels::GrowsByToken()) {}
};

TEST_F(SessionFitsUncapped, NoSlotCapAndNoPositionBeyondTheServers) {
  EXPECT_EQ(Check(), absl::OkStatus());
  image_.slot_cap = 64;
  ExpectUnfit(kUnfit, "slot cap 64, this server takes 0 to 0");
  image_.slot_cap = 0;
  image_.position = 3001;
  ExpectUnfit(kUnfit, "position 3001, this server takes 0 to 3000");
  image_.position = 6;
  image_.state_bytes = layout_.live_bytes_at(6, 0);
  image_.unread = 2994;
  EXPECT_EQ(Check(), absl::OkStatus());
  image_.unread = 2995;
  ExpectUnfit(kUnfit, "2995 tokens behind position 6, this server takes 0 to 2994");
}

}  // namespace
}  // namespace ovq::engine
