// Texts of sessions in memory; durable_test has those of a folder.
#include "server/engine/sessions/session_texts.h"

#include <gtest/gtest.h>

namespace ovq::engine {
namespace {

TEST(SessionTexts, TheOldestGoBeyondTheBudget) {
  SessionTexts texts(2500, nullptr);
  const auto put = [&texts](const char* id, int created, size_t bytes) {
    SessionInfo info;
    info.id = id;
    info.created = absl::FromUnixSeconds(created);
    texts.Put(info, std::make_shared<const std::string>(bytes, *id),
              [](const absl::Status& status) { EXPECT_TRUE(status.ok()); });
  };
  const auto get = [&texts](const char* id) {
    std::string found = "none";
    texts.Get(
        id, [](size_t) { return absl::OkStatus(); },
        [&found](const absl::StatusOr<SessionText>& text) {
          if (*text != nullptr) found = **text;
        });
    return found;
  };
  put("b", 2, 500);
  put("a", 1, 500);  // its session is older
  put("c", 3, 500);
  EXPECT_EQ(get("a"), "none");
  EXPECT_EQ(get("b"), std::string(500, 'b'));
  EXPECT_EQ(get("c"), std::string(500, 'c'));
  put("d", 4, 2500);
  EXPECT_EQ(get("d"), "none");
  EXPECT_NE(get("b"), "none");
  texts.Forget("b");
  EXPECT_EQ(get("b"), "none");
  put("c", 3, 700);  // another text counts in place of the first
  put("e", 5, 700);
  EXPECT_EQ(get("c"), std::string(700, 'c'));
}

}  // namespace
}  // namespace ovq::engine
