#include "server/s3/session_object.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace ovq::s3 {
namespace {

SessionObject FullObject() {
  return {.owner = "owner",
          .epoch = 7,
          .nonce = "nonce",
          .snapshot = "snapshot-1",
          .snapshot_parts = 2,
          .text = "text-1",
          .text_bytes = 9,
          .parts = {{"journal-1", 5}, {"journal-2", 6}},
          .tail = std::string("the \0 end", 9)};
}

TEST(SessionObject, ReadsWhatItWrites) {
  const absl::StatusOr<SessionObject> object =
      DecodeSessionObject(EncodeSessionObject(FullObject()));
  ASSERT_TRUE(object.ok()) << object.status();
  EXPECT_EQ(object->owner, "owner");
  EXPECT_EQ(object->epoch, 7u);
  EXPECT_EQ(object->nonce, "nonce");
  EXPECT_FALSE(object->removed);
  EXPECT_EQ(object->snapshot_parts, 2u);
  EXPECT_EQ(object->text_bytes, 9u);
  EXPECT_EQ(object->parts[1].name, "journal-2");
  EXPECT_EQ(object->parts[1].bytes, 6u);
  EXPECT_EQ(object->tail, std::string("the \0 end", 9));
  EXPECT_THAT(DataKeys("ID", *object),
              testing::ElementsAre("data/ID/snapshot-1.1", "data/ID/snapshot-1.2",
                                   "data/ID/journal-1", "data/ID/journal-2", "data/ID/text-1"));
  EXPECT_TRUE(DecodeSessionObject(EncodeSessionObject({.removed = true}))->removed);
}

TEST(SessionObject, NoSnapshotHasMorePartsThanASessionNeeds) {
  SessionObject object = FullObject();
  object.snapshot_parts = 1 << 20;  // of 8 MiB
  EXPECT_EQ(DecodeSessionObject(EncodeSessionObject(object))->snapshot_parts, 1u << 20);
  for (const uint32_t parts : {(1u << 20) + 1, ~0u}) {
    object.snapshot_parts = parts;
    const absl::Status status = DecodeSessionObject(EncodeSessionObject(object)).status();
    EXPECT_TRUE(absl::IsDataLoss(status)) << status;
  }
}

TEST(SessionObject, EveryChangedByteOfTheHeadIsFound) {
  const SessionObject full = FullObject();
  const std::string bytes = EncodeSessionObject(full);
  for (size_t i = 0; i + full.tail.size() < bytes.size(); ++i) {
    std::string changed = bytes;
    changed[i] ^= 1;
    const bool version = i >= 8 && i < 12;
    EXPECT_EQ(DecodeSessionObject(changed).status().code(),
              version ? absl::StatusCode::kFailedPrecondition : absl::StatusCode::kDataLoss)
        << i;
  }
  for (size_t n = 0; n + full.tail.size() < bytes.size(); ++n) {
    EXPECT_FALSE(DecodeSessionObject(bytes.substr(0, n)).ok()) << n;
  }
}

}  // namespace
}  // namespace ovq::s3
