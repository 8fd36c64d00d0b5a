#include "server/store/journal.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <random>

namespace ovq::store::test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

JournalHead SomeHead() {
  JournalHead head;
  head.id = "blue.0123456789abcdef0123456789abcdef";
  head.tenant = "ann";
  head.cache_policy = "paper";
  head.fingerprint = std::string(64, 'f');
  head.layout = 0x8123456789abcdef;
  head.slot_cap = 40;
  head.keeps_tokens = true;
  head.ttl_ms = 90'000;
  head.created_unix_ms = 1'700'000'000'000;
  head.version = 3;
  head.snapshot_bytes = 1234;
  head.mark = {.length = 20,
               .pending = 7,
               .turn_ends = {5, 20},
               .prompt_tokens = 12,
               .generated_tokens = 8,
               .used_unix_ms = 1'700'000'000'001};
  return head;
}

JournalEntry Entry(int64_t begin, std::vector<int32_t> tokens, bool ends_turn = true) {
  JournalEntry entry{.begin = begin, .tokens = std::move(tokens), .ends_turn = ends_turn};
  if (!entry.tokens.empty()) entry.pending = entry.tokens.back();
  return entry;
}

TEST(Journal, SaysWhatWasWritten) {
  const JournalHead head = SomeHead();
  std::string file = EncodeHead(head);
  file += EncodeEntry(Entry(20, {1, 2, 3}));
  const size_t whole = file.size();
  file += EncodeEntry(Entry(22, {9}, false));
  const absl::StatusOr<Journal> journal = DecodeJournal(file);
  ASSERT_TRUE(journal.ok()) << journal.status();
  EXPECT_EQ(EncodeHead(journal->head), EncodeHead(head));
  EXPECT_EQ(journal->head.ttl_ms, 90'000);
  EXPECT_EQ(journal->good_bytes, file.size());
  EXPECT_EQ(journal->version(), 5u);
  EXPECT_EQ(journal->entries[0].tokens, (std::vector<int32_t>{1, 2, 3}));
  // Back to 22, before the end of the turn at 23.
  EXPECT_EQ(journal->mark().length, 23);
  EXPECT_EQ(journal->mark().pending, 9);
  EXPECT_THAT(journal->mark().turn_ends, ElementsAre(5, 20));
  const absl::StatusOr<Journal> shorter = DecodeJournal(std::string_view(file).substr(0, whole));
  EXPECT_THAT(shorter->mark().turn_ends, ElementsAre(5, 20, 23));
}

TEST(Journal, HasTheUnfinishedAnswerAfterEachChange) {
  JournalHead head = SomeHead();
  head.mark.unfinished = "first";
  JournalEntry second = Entry(20, {1}), third = Entry(21, {2});
  second.unfinished = std::string(100'000, '\0');
  std::string file = EncodeHead(head);
  EXPECT_EQ(DecodeJournal(file)->mark().unfinished, "first");
  file += EncodeEntry(second);
  EXPECT_EQ(DecodeJournal(file)->mark().unfinished, second.unfinished);
  file += EncodeEntry(third);
  EXPECT_EQ(DecodeJournal(file)->mark().unfinished, "");
  EXPECT_EQ(EncodeHead(DecodeJournal(file)->head), EncodeHead(head));
}

TEST(Journal, WhatWasBeingWrittenIsLeftOut) {
  std::string file = EncodeHead(SomeHead());
  const size_t head = file.size();
  file += EncodeEntry(Entry(20, {1, 2, 3}));
  for (size_t bytes = 0; bytes < head; ++bytes) {
    EXPECT_TRUE(absl::IsDataLoss(DecodeJournal(file.substr(0, bytes)).status())) << bytes;
  }
  for (size_t bytes = head; bytes < file.size(); ++bytes) {
    const absl::StatusOr<Journal> journal = DecodeJournal(file.substr(0, bytes));
    ASSERT_TRUE(journal.ok()) << journal.status();
    EXPECT_EQ(journal->good_bytes, head);
    EXPECT_THAT(journal->entries, IsEmpty());
  }
  // Blocks that never reached the disk read as zeros.
  const absl::StatusOr<Journal> journal = DecodeJournal(file + std::string(500, '\0'));
  ASSERT_TRUE(journal.ok()) << journal.status();
  EXPECT_EQ(journal->good_bytes, file.size());
}

// A crash may leave an entry of which some blocks never reached the disk.
TEST(Journal, AnEntryThatEndsInUnwrittenBlocksIsLeftOut) {
  constexpr size_t kBlock = 512;
  const std::string before = EncodeHead(SomeHead()) + EncodeEntry(Entry(20, {1, 2, 3}));
  const std::string file = before + EncodeEntry(Entry(23, std::vector<int32_t>(1000, 5)));
  ASSERT_EQ(DecodeJournal(file)->entries.size(), 2u);
  for (size_t at = kBlock; at < file.size(); at += kBlock) {
    if (at < before.size()) continue;
    std::string torn = file;
    std::fill(torn.begin() + static_cast<std::ptrdiff_t>(at), torn.end(), '\0');
    for (const std::string& end : {std::string(), std::string(kBlock, '\0')}) {
      const absl::StatusOr<Journal> journal = DecodeJournal(torn + end);
      ASSERT_TRUE(journal.ok()) << journal.status() << " " << at;
      EXPECT_EQ(journal->good_bytes, before.size());
      EXPECT_EQ(journal->entries.size(), 1u);
    }
    // Where something follows, the entry was written once.
    EXPECT_TRUE(absl::IsDataLoss(DecodeJournal(torn + EncodeEntry(Entry(23, {7}))).status()));
  }
}

// The entries behind it were answered.
TEST(Journal, AWrongLengthBeforeTheLastEntryIsDamage) {
  std::string file = EncodeHead(SomeHead());
  const size_t first = file.size();
  file += EncodeEntry(Entry(20, {1, 2, 3})) + EncodeEntry(Entry(23, {4}));
  for (size_t byte = first + 4; byte < first + 12; ++byte) {
    std::string bad = file;
    bad[byte] = '\x7f';
    EXPECT_TRUE(absl::IsDataLoss(DecodeJournal(bad).status())) << byte - first;
  }
}

TEST(Journal, NoFlippedBitGoesUnnoticed) {
  std::string file = EncodeHead(SomeHead());
  file += EncodeEntry(Entry(20, {1, 2, 3}));
  const size_t second = file.size();
  file += EncodeEntry(Entry(23, {4}));
  const Journal whole = *DecodeJournal(file);
  for (size_t bit = 0; bit < 8 * file.size(); ++bit) {
    std::string bad = file;
    bad[bit / 8] = static_cast<char>(bad[bit / 8] ^ (1 << (bit % 8)));
    const absl::StatusOr<Journal> journal = DecodeJournal(bad);
    if (!journal.ok()) continue;
    // The last entry looks like one that was being written if its length became longer.
    EXPECT_EQ(journal->good_bytes, second) << "bit " << bit;
    EXPECT_EQ(journal->entries.size(), whole.entries.size() - 1);
  }
}

TEST(Journal, WhatNoSessionIsIsRefused) {
  const auto error = [](const std::string& file) {
    return std::string(DecodeJournal(file).status().message());
  };
  JournalHead head = SomeHead();
  EXPECT_THAT(error(EncodeHead(head) + EncodeEntry(Entry(21, {1}))),
              HasSubstr("goes on at 21, expected 0 to 20"));
  EXPECT_THAT(error(EncodeHead(head) + EncodeEntry(Entry(-1, {1}))), HasSubstr("goes on at -1"));
  EXPECT_THAT(error(EncodeEntry(Entry(0, {1}))), HasSubstr("does not begin with OVQJRNL"));
  EXPECT_THAT(error(EncodeHead(head) + EncodeHead(head).substr(12)), HasSubstr("of another kind"));
  std::string next = EncodeHead(head);
  next[8] = 2;
  EXPECT_TRUE(absl::IsFailedPrecondition(DecodeJournal(next).status()));
  head.mark.turn_ends = {21};
  EXPECT_THAT(error(EncodeHead(head)), HasSubstr("says what no session is"));
  head = SomeHead();
  head.version = 0;
  EXPECT_THAT(error(EncodeHead(head)), HasSubstr("says what no session is"));
}

TEST(Journal, RandomBytesHurtNobody) {
  const std::string file = EncodeHead(SomeHead()) + EncodeEntry(Entry(20, {1, 2, 3}));
  std::mt19937 random(1);
  for (int i = 0; i < 20'000; ++i) {
    std::string bad = file;
    for (int k = std::uniform_int_distribution(1, 9)(random); k > 0; --k) {
      bad[std::uniform_int_distribution<size_t>(0, bad.size() - 1)(random)] =
          static_cast<char>(random());
    }
    bad.resize(std::uniform_int_distribution<size_t>(0, bad.size())(random));
    const absl::StatusOr<Journal> journal = DecodeJournal(bad);
    EXPECT_TRUE(journal.ok() || !journal.status().message().empty());
  }
}

}  // namespace
}  // namespace ovq::store::test
