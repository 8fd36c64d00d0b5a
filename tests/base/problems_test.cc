#include "base/problems.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace ovq {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

const absl::Status kOne = absl::NotFoundError("one");
const absl::Status kTwo = absl::DataLossError(std::string("two\0\n", 5));
const absl::Status kThree = absl::InvalidArgumentError("");

TEST(Problems, AStatusIsItsFirstProblem) {
  absl::Status status;
  EXPECT_THAT(SplitProblems(status), IsEmpty());
  AddProblems(status, absl::OkStatus());
  EXPECT_TRUE(status.ok());
  for (const absl::Status& problem : {kOne, kTwo, absl::OkStatus(), kThree}) {
    AddProblems(status, problem);
  }
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(status.message(), "one");
  EXPECT_THAT(SplitProblems(status), ElementsAre(kOne, kTwo, kThree));
}

TEST(Problems, EachMessageStandsOnce) {
  absl::Status status = kOne, more = kTwo;
  AddProblems(more, kOne);
  AddProblems(more, kThree);
  AddProblems(status, more);
  AddProblems(status, absl::InternalError("one"));
  EXPECT_THAT(SplitProblems(status), ElementsAre(kOne, kTwo, kThree));
  AddProblems(status, status);
  EXPECT_EQ(SplitProblems(status).size(), 3u);
}

TEST(Problems, NobodyReadsThousands) {
  absl::Status status;
  for (int i = 0; i < 5000; ++i) {
    AddProblems(status, absl::NotFoundError(std::to_string(i)));
    status = i % 1000 == 999 ? InContext("in", status) : status;
  }
  const std::vector<absl::Status> problems = SplitProblems(status);
  ASSERT_EQ(problems.size(), 201u);
  EXPECT_EQ(problems[199].message(), "in: in: in: in: in: 199");
  EXPECT_EQ(problems[200].message(), "and more problems");
}

TEST(Problems, AContextIsSaidOfEach) {
  absl::Status status = kOne;
  AddProblems(status, kTwo);
  EXPECT_THAT(SplitProblems(InContext("here", status)),
              ElementsAre(absl::NotFoundError("here: one"),
                          absl::DataLossError(std::string("here: two\0\n", 11))));
  EXPECT_TRUE(InContext("here", absl::OkStatus()).ok());
}

}  // namespace
}  // namespace ovq
