// Model output that is not a number: the call that met it ends, its session can only be viewed and
// deleted, and no other call is affected.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <limits>
#include <memory>
#include <string>

#include "server/disk/session_folder.h"
#include "tests/server/engine/fake_model.h"

namespace ovq::engine::test {
namespace {

using testing::HasSubstr;

constexpr int32_t kBad = 200;  // after this token a logit is not a number

class Damaged : public testing::Test {
 protected:
  Damaged() : path_(testing::TempDir() + "/damaged" + std::to_string(getpid())) {
    std::filesystem::remove_all(path_);
  }
  ~Damaged() override {
    engine_.reset();
    std::filesystem::remove_all(path_);
  }

  void Start(EngineOptions options = {}, bool with_folder = false) {
    engine_.reset();
    counted_ = 0;
    store::RecoveredSessions found;
    if (with_folder) {
      options.session_store = disk::SessionFolder::Open({.path = path_}).value();
      found = options.session_store->Recover().value();
    }
    EngineEvents events;
    events.not_a_number = [this](int64_t) { ++counted_; };
    engine_ =
        std::make_unique<TestEngine>(options, FakeModelOptions{}, events, [this](FakeModel& model) {
          model.Spoil(kBad, logit_);
          for (const int64_t position : bad_at_) model.Script(position, kBad);
        });
    if (with_folder) engine()->sessions().Adopt(std::move(found.sessions));
  }
  TestEngine& engine() { return *engine_; }

  static void ExpectDamaged(const absl::Status& status, int64_t position) {
    EXPECT_TRUE(absl::IsDataLoss(status)) << status;
    EXPECT_THAT(std::string(status.message()),
                HasSubstr("damaged: the model's output was not a number at position " +
                          std::to_string(position)));
  }

  const std::string path_;
  std::vector<int64_t> bad_at_;  // positions at which kBad is drawn
  float logit_ = std::numeric_limits<float>::quiet_NaN();
  int counted_ = 0;
  std::unique_ptr<TestEngine> engine_;
};

TEST_F(Damaged, ACallEndsWhereItIsMet) {
  for (const float logit :
       {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(),
        -std::numeric_limits<float>::infinity()}) {
    logit_ = logit;
    bad_at_ = {12};
    Start();
    for (const int n : {1, 3}) {
      GenerateRequest request = SampleRequest(SomeTokens(10, 1), 20);
      request.n = n;
      const Answers answers = engine().Run(request);
      EXPECT_EQ(answers.status.code(), absl::StatusCode::kInternal);
      EXPECT_EQ(answers.status.message(), "the model's output is not a number at position 13");
      EXPECT_EQ(answers.of[0].tokens.size(), 3u);
      EXPECT_EQ(answers.of[0].tokens.back(), kBad);
      EXPECT_FALSE(answers.of[0].finished);
    }
    const Answers at_once = engine().Run(SampleRequest({1, 2, kBad}, 20));
    EXPECT_EQ(at_once.status.message(), "the model's output is not a number at position 3");
    EXPECT_TRUE(at_once.of[0].tokens.empty());
    EXPECT_EQ(engine().SettledStats().sessions_active, 0);
    EXPECT_EQ(engine().SettledStats().state_bytes_reserved, 0u);
    EXPECT_EQ(counted_, 3);
  }
}

TEST_F(Damaged, AScoreEnds) {
  Start();
  for (const int32_t last : {kBad, 7}) {
    Receiver<absl::StatusOr<ScoreResult>> score;
    ScoreRequest request;
    request.prompt = {1, 2, last, 4};
    ASSERT_TRUE(engine()->SubmitScore(request, nullptr, score.callback()).ok());
    const absl::Status status = score.Wait().status();
    if (last != kBad) {
      EXPECT_TRUE(status.ok()) << status;
    } else {
      EXPECT_EQ(status.message(), "the model's output is not a number at position 3");
    }
  }
}

// The others share iterations with the bad call and draw the same tokens as alone.
TEST_F(Damaged, OthersDoNotNotice) {
  bad_at_ = {15};
  Start();
  const std::string id = engine().NewSession().id;
  const std::vector<int32_t> prompt = SomeTokens(30, 2);
  const Answers alone = engine().Run(SampleRequest(prompt, 40));
  const int64_t step = engine().model().gate().steps() + 1;
  engine().model().gate().CloseAt(step);
  const auto first = engine().Start(SampleRequest(prompt, 40));
  engine().model().gate().AwaitEntered(step);
  const auto damaged = engine().Start(Turn(id, SomeTokens(10, 1), 40));
  const auto other = engine().Start(SampleRequest(prompt, 40));
  engine().model().gate().Open();
  EXPECT_EQ(ReadAll(*damaged).status.code(), absl::StatusCode::kInternal);
  for (const auto& stream : {first, other}) {
    const Answers answers = ReadAll(*stream);
    EXPECT_TRUE(answers.status.ok()) << answers.status;
    EXPECT_EQ(answers.of[0].tokens, alone.of[0].tokens);
  }
}

TEST_F(Damaged, ASessionIsShownAndDeletedAndNothingElse) {
  bad_at_ = {15};
  Start();
  const std::string id = engine().NewSession().id;
  ASSERT_TRUE(engine().Run(Turn(id, SomeTokens(8, 1), 2)).status.ok());
  EXPECT_EQ(engine()->sessions().Get(id, "")->damaged_at, std::nullopt);
  EXPECT_EQ(engine().Run(Turn(id, {1}, 20)).status.code(), absl::StatusCode::kInternal);
  EXPECT_EQ(engine()->sessions().Get(id, "")->damaged_at, 16);
  EXPECT_EQ(engine()->sessions().List("", 10, "")->sessions[0].damaged_at, 16);

  auto stream = std::make_shared<TokenStream>(16);
  ExpectDamaged(engine()->Submit(Turn(id, {1}, 3), stream), 16);
  ExpectDamaged(engine()->sessions().Export(id, "").status(), 16);
  ExpectDamaged(engine()->sessions().Export(id, "").status(), 16);
  Receiver<absl::StatusOr<std::vector<SessionInfo>>> forked;
  engine()->sessions().Fork({.session_id = id}, forked.callback());
  ExpectDamaged(forked.Wait().status(), 16);
  Receiver<absl::StatusOr<RewindResult>> rewound;
  engine()->sessions().Rewind({.session_id = id, .position = 5}, nullptr, rewound.callback());
  ExpectDamaged(rewound.Wait().status(), 16);

  EXPECT_TRUE(engine()->sessions().Delete(id, "").ok());
  EXPECT_TRUE(absl::IsNotFound(engine()->sessions().Get(id, "").status()));
  EXPECT_EQ(engine().SettledStats().state_bytes_reserved, 0u);
}

// Prefixes of a prompt that ended so are dropped: later prompts would reuse a bad state.
TEST_F(Damaged, NoPromptIsKept) {
  Start();
  std::vector<int32_t> prompt = SomeTokens(2 * 256 + 5, 3);
  for (int32_t& token : prompt) token %= 100;
  const auto cached = [&](int32_t last) {
    GenerateRequest request = SampleRequest(prompt, 3);
    request.prompt.push_back(last);
    request.cacheable = static_cast<int64_t>(prompt.size());
    return engine().Run(std::move(request)).started->cached_tokens;
  };
  EXPECT_EQ(cached(1), 0);
  EXPECT_EQ(cached(2), std::ssize(prompt));
  EXPECT_EQ(cached(kBad), std::ssize(prompt));
  EXPECT_EQ(engine().SettledStats().prefixes.bytes, 0u);
  EXPECT_EQ(cached(kBad), 0);
  EXPECT_EQ(cached(3), 0);
}

// A restart finds the session as its last good turn left it: the damaged state is never written to
// disk, even if others need its memory.
TEST_F(Damaged, TheDiskKeepsTheLastGoodTurn) {
  bad_at_ = {1015};
  EngineOptions options;
  options.overcommit = true;
  Start(options, true);
  const size_t each = engine().model().layout().bytes_cap(kDefaultSlotCap);
  options.state_memory_bytes = 2 * each;
  Start(options, true);
  const std::string id = engine().NewSession().id;
  ASSERT_TRUE(engine().Run(Turn(id, SomeTokens(1000, 1), 3)).status.ok());
  const std::vector<std::byte> good = State(engine(), id);
  EXPECT_EQ(engine().Run(Turn(id, {1, 2, 3}, 20)).status.code(), absl::StatusCode::kInternal);
  EXPECT_EQ(counted_, 1);
  EXPECT_FALSE(engine()->sessions().Get(id, "")->durable);
  engine().NewSession();
  engine().NewSession();  // swaps the other one out
  EXPECT_FALSE(engine()->sessions().Get(id, "")->hibernated);

  bad_at_ = {};
  Start(options, true);
  const absl::StatusOr<SessionInfo> info = engine()->sessions().Get(id, "");
  ASSERT_TRUE(info.ok()) << info.status();
  EXPECT_EQ(info->damaged_at, std::nullopt);
  EXPECT_EQ(info->position, 1003);
  EXPECT_EQ(State(engine(), id), good);
  EXPECT_TRUE(engine().Run(Turn(id, {1, 2, 3}, 20)).status.ok());
}

// The output of a prompt is checked even if nothing is drawn.
TEST_F(Damaged, APromptAloneIsChecked) {
  Start({}, true);
  Receiver<absl::StatusOr<SessionInfo>> opened;
  SessionOptions options;
  options.prompt = {1, 2, kBad, 4};  // the last one stays pending
  engine()->sessions().Create(options, opened.callback());
  EXPECT_EQ(opened.Wait().status().code(), absl::StatusCode::kInternal);
  EXPECT_TRUE(engine()->sessions().List("", 10, "")->sessions.empty());
  EXPECT_EQ(engine().SettledStats().state_bytes_reserved, 0u);

  options.prompt = SomeTokens(2000, 1);
  std::ranges::replace(options.prompt, kBad, 0);
  const std::string id = engine().NewSession(options).id;
  const std::vector<std::byte> good = State(engine(), id);
  options.prompt.push_back(kBad);
  options.prompt.push_back(4);
  EXPECT_EQ(engine().Run(Turn(id, options.prompt, 0)).status.code(), absl::StatusCode::kInternal);
  EXPECT_EQ(engine()->sessions().Get(id, "")->damaged_at, 4001);
  EXPECT_EQ(counted_, 2);
  Start({}, true);
  EXPECT_EQ(engine()->sessions().Get(id, "")->position, 2000);
  EXPECT_EQ(State(engine(), id), good);
}

TEST_F(Damaged, WhatCannotBeReadAgainLeavesASessionAsItWas) {
  Start();
  SessionOptions options;
  options.prompt = {1, 2, kBad, 4, 5, 6};
  const std::string id = engine().NewSession(options).id;
  const std::vector<std::byte> before = State(engine(), id);
  Receiver<absl::StatusOr<RewindResult>> rewound;
  engine()->sessions().Rewind({.session_id = id, .position = 4}, nullptr, rewound.callback());
  EXPECT_EQ(rewound.Wait().status().code(), absl::StatusCode::kInternal);
  EXPECT_EQ(engine()->sessions().Get(id, "")->damaged_at, std::nullopt);
  EXPECT_EQ(State(engine(), id), before);
}

}  // namespace
}  // namespace ovq::engine::test
