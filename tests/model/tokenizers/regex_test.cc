#include "model/tokenizers/regex.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <regex.h>

#include "tests/model/model_test_util.h"

namespace ovq::model::test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::vector<TextSpan> FindAll(const std::string& pattern, std::string_view text) {
  std::vector<TextSpan> matches;
  const absl::StatusOr<Regex> regex = Regex::Compile(pattern);
  EXPECT_TRUE(regex.ok()) << regex.status();
  EXPECT_TRUE(regex.ok() && regex->FindAll(text, matches).ok());
  return matches;
}

TEST(Regex, FindsAllFromLeftToRight) {
  EXPECT_THAT(FindAll("a+", "aabca"), ElementsAre(TextSpan{0, 2}, TextSpan{4, 5}));
  EXPECT_THAT(FindAll("a+", ""), ElementsAre());
  EXPECT_THAT(FindAll("\\p{L}+", "h\xc3\xa9 x"), ElementsAre(TextSpan{0, 3}, TextSpan{4, 5}));
}

TEST(Regex, EmptyMatchesNeverFollowAMatchAndNeverCutACharacter) {
  EXPECT_THAT(FindAll("x*", "\xc3\xa9x"), ElementsAre(TextSpan{0, 0}, TextSpan{2, 3}));
  EXPECT_THAT(FindAll("", ""), ElementsAre(TextSpan{0, 0}));
}

TEST(Regex, LooksBehindTheLastMatch) {
  EXPECT_THAT(FindAll("(?<=a)b", "abb"), ElementsAre(TextSpan{1, 2}));
  EXPECT_THAT(FindAll("\\Gb", "bba"), ElementsAre(TextSpan{0, 1}, TextSpan{1, 2}));
}

TEST(Regex, SaysWhyAPatternDoesNotCompile) {
  const absl::Status status = Regex::Compile("(a").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(Message(status), HasSubstr("regex '(a' does not compile: end pattern"));
}

// Giving up is an error, never a wrong answer.
TEST(Regex, GivesUpWithAnError) {
  const absl::StatusOr<Regex> regex = Regex::Compile("(?:a|aa|aaa)+$");
  ASSERT_TRUE(regex.ok());
  std::vector<TextSpan> matches;
  const absl::Status status = regex->FindAll(std::string(60, 'a') + "b", matches);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(Message(status), HasSubstr("retry-limit"));
}

// The engine also defines functions of these names.
TEST(Regex, LeavesTheCLibrarysAlone) {
  ASSERT_TRUE(Regex::Compile("a").ok());
  regex_t regex;
  ASSERT_EQ(regcomp(&regex, "^[0-9a-f]{2}$", REG_EXTENDED | REG_NOSUB), 0);
  EXPECT_EQ(regexec(&regex, "0f", 0, nullptr, 0), 0);
  EXPECT_EQ(regexec(&regex, "0", 0, nullptr, 0), REG_NOMATCH);
  regfree(&regex);
}

}  // namespace
}  // namespace ovq::model::test
