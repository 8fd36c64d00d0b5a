// Tests of Runner with a fake server of a few threads. Times are checked against lower bounds only:
// a busy machine makes everything later, never earlier.
#include "clients/load/runner.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "clients/load/experiment.h"

namespace ovq::load {
namespace {

using std::chrono::milliseconds;

// Answers every call on a thread of its own after `service`, or at CancelAll if that is 0.
class FakeServer {
 public:
  explicit FakeServer(milliseconds service) : service_(service) {}
  ~FakeServer() {
    for (std::thread& thread : threads_) thread.join();
  }

  Calls calls() {
    Calls calls;
    calls.generate = [this](GenerateSpec spec, std::function<void(Outcome)> done) {
      threads_.emplace_back(
          [this, spec = std::move(spec), done = std::move(done)] { done(Answer(spec)); });
    };
    calls.create_session = [this](std::function<void(absl::StatusOr<std::string>)> done) {
      if (refuse_sessions) return done(absl::ResourceExhaustedError("no room"));
      const std::lock_guard lock(mutex_);
      const std::string id = absl::StrCat("s", created.fetch_add(1));
      turns[id] = {};
      done(id);
    };
    calls.get_position = [this](const std::string& id,
                                std::function<void(absl::StatusOr<int64_t>)> done) {
      if (away-- > 0) return done(absl::UnavailableError("gone"));
      const std::lock_guard lock(mutex_);
      done(positions[id] - lost);
    };
    calls.delete_session = [this](const std::string&, std::function<void(absl::Status)> done) {
      if (away_for_deletions-- > 0) return done(absl::UnavailableError("gone"));
      if (forgets_sessions) return done(absl::NotFoundError("no such session"));
      ++deleted;
      done(absl::OkStatus());
    };
    calls.cancel_all = [this] {
      const std::lock_guard lock(mutex_);
      cancelled_ = true;
      changed_.notify_all();
    };
    calls.tokens_received = [] { return 0; };
    return calls;
  }

  std::atomic<int> most_running = 0, created = 0, deleted = 0;
  std::atomic<bool> refuse_sessions = false;
  std::atomic<int> fail_call = -1;  // index of the Generate call that fails
  std::atomic<int> away = 0;        // number of position queries that fail
  std::atomic<int> away_for_deletions = 0;
  std::atomic<bool> forgets_sessions = false;
  int64_t lost = 0;  // tokens lost while it was away
  std::map<std::string, int64_t> positions;
  std::map<std::string, std::vector<size_t>> turns;  // prompt lengths of each session

 private:
  Outcome Answer(const GenerateSpec& spec) {
    Outcome outcome;
    outcome.sent = Clock::now();
    std::unique_lock lock(mutex_);
    const int number = calls_++;
    most_running = std::max(most_running.load(), ++running_);
    if (!spec.session_id.empty()) turns[spec.session_id].push_back(spec.prompt.size());
    if (service_ > milliseconds(0)) {
      changed_.wait_for(lock, service_, [this] { return cancelled_; });
    } else {
      changed_.wait(lock, [this] { return cancelled_; });
    }
    --running_;
    outcome.ended = Clock::now();
    if (cancelled_) outcome.status = absl::CancelledError("cancelled");
    if (number == fail_call) outcome.status = absl::UnavailableError("gone");
    if (outcome.status.ok()) {
      outcome.arrivals.push_back({outcome.ended, static_cast<uint32_t>(spec.output_tokens)});
      outcome.usage.prompt_tokens = static_cast<int64_t>(spec.prompt.size());
      outcome.usage.generated_tokens = spec.output_tokens;
      int64_t& position = positions[spec.session_id];
      position += outcome.usage.prompt_tokens + outcome.usage.generated_tokens;
      outcome.usage.position = position;
    }
    return outcome;
  }

  const milliseconds service_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool cancelled_ = false;
  int running_ = 0, calls_ = 0;
  std::vector<std::thread> threads_;  // used on the runner's thread only
};

RunResult RunOn(FakeServer& server, const RunPlan& plan, WorkloadOptions work) {
  Workload workload(std::move(work));
  const PromptMaker prompts(1, 100);
  const Calls calls = server.calls();
  const std::atomic<int> interrupts = 0;
  return Runner(plan, workload, prompts, calls, interrupts, [](const Progress&) {}).Run();
}

TEST(Runner, ClosedLoopKeepsItsUsersBusy) {
  FakeServer server(milliseconds(50));  // long enough for four calls to overlap on a busy machine,
                                        // too
  const RunResult result = RunOn(server, {.users = 4}, {.max_requests = 40});
  EXPECT_EQ(result.records.size(), 40u);
  EXPECT_EQ(server.most_running, 4);
  for (const Record& record : result.records) {
    EXPECT_TRUE(record.completed());
    EXPECT_EQ(record.start, record.outcome.sent);
  }
}

TEST(Runner, SessionsTakeTheirTurnsInOrder) {
  FakeServer server(milliseconds(1));
  const RunResult result = RunOn(
      server, {.users = 2, .think_time = absl::Milliseconds(10)},
      {.input = *LengthDistribution::Parse("uniform:1-1000", 1000), .turns = 3, .max_requests = 8});
  EXPECT_EQ(result.records.size(), 8u);
  EXPECT_EQ(server.created, 3);
  EXPECT_EQ(server.deleted, 3);
  EXPECT_EQ(result.create_ms.size(), 3u);
  std::map<int64_t, std::vector<Record>> conversations;
  for (const Record& record : result.records) conversations[record.conversation].push_back(record);
  ASSERT_EQ(conversations.size(), 3u);
  for (const auto& [index, records] : conversations) {
    for (size_t i = 0; i < records.size(); ++i) {
      EXPECT_EQ(records[i].turn, static_cast<int64_t>(i));
      if (i == 0) continue;  // then after the think time
      EXPECT_GE(records[i].outcome.sent, records[i - 1].outcome.ended + milliseconds(10));
    }
  }
}

// A request is due every 10 ms and takes 30 ms, one at a time: each delays its successors, whose
// latencies must include the wait. Counted from when they were sent, all would be 30 ms.
TEST(Runner, OpenLoopCountsFromTheIntendedStart) {
  FakeServer server(milliseconds(30));
  const RunResult result = RunOn(server,
                                 {.kind = RunPlan::Kind::kRate,
                                  .arrivals = {.kind = ArrivalKind::kConstant, .rate = 100},
                                  .max_in_flight = 1},
                                 {.max_requests = 5});
  ASSERT_EQ(result.records.size(), 5u);
  EXPECT_EQ(server.most_running, 1);
  const Record& first = result.records[0];
  const Record& last = result.records[4];
  EXPECT_NEAR(SecondsBetween(first.start, last.start), 0.04, 1e-6);
  // Five services in a row, less the 40 ms between the first and the last due time.
  EXPECT_GE(ComputeLatencies(last).e2e, 5 * 30 - 40);
  EXPECT_GE(last.send_delay_s, 0.08);
}

TEST(Runner, TraceSetsTheTimes) {
  FakeServer server(milliseconds(1));
  const RunResult result =
      RunOn(server, {.kind = RunPlan::Kind::kTrace},
            {.trace = {{0, 3, 1, "a"}, {0.05, 5, 2, ""}, {0.08, 7, 1, "a"}}, .trace_speed = 2});
  ASSERT_EQ(result.records.size(), 3u);
  const auto find = [&](int64_t tokens) {
    return *std::find_if(result.records.begin(), result.records.end(),
                         [&](const Record& record) { return record.input_tokens == tokens; });
  };
  EXPECT_NEAR(SecondsBetween(find(3).start, find(5).start), 0.025, 1e-6);
  EXPECT_NEAR(SecondsBetween(find(3).start, find(7).start), 0.040, 1e-6);
  EXPECT_EQ(server.turns.at("s0"), (std::vector<size_t>{3, 7}));
  EXPECT_EQ(server.created, 1);
}

TEST(Runner, DurationEndsARunThatHangs) {
  FakeServer server(milliseconds(0));
  const RunResult result = RunOn(
      server, {.users = 3, .duration = absl::Milliseconds(200), .grace = absl::Milliseconds(20)},
      {.max_requests = 100});
  ASSERT_EQ(result.records.size(), 3u);
  for (const Record& record : result.records) {
    EXPECT_TRUE(record.cut_off);
    EXPECT_FALSE(record.failed());
  }
}

TEST(Runner, TellsWhatWasDueAndNeverSent) {
  FakeServer server(milliseconds(0));
  const RunResult result = RunOn(server,
                                 {.kind = RunPlan::Kind::kRate,
                                  .arrivals = {.kind = ArrivalKind::kConstant, .rate = 10},
                                  .max_in_flight = 2,
                                  .duration = absl::Milliseconds(550),
                                  .grace = absl::ZeroDuration()},
                                 {.max_requests = 100});
  EXPECT_EQ(result.records.size(), 2u);
  EXPECT_EQ(result.unsent, 3);  // those due at 0.1, 0.2, ..., 0.5 s
}

TEST(Runner, InterruptStopsAndSecondCancels) {
  FakeServer server(milliseconds(0));
  Workload workload({.max_requests = 100});
  const PromptMaker prompts(1, 100);
  const Calls calls = server.calls();
  std::atomic<int> interrupts = 0;
  const RunPlan plan{.users = 2,
                     .duration = absl::Hours(1),
                     .grace = absl::Hours(1),
                     .interrupted_grace = absl::Hours(1)};
  Runner runner(plan, workload, prompts, calls, interrupts, [&](const Progress& progress) {
    // Interrupts twice: once its requests run, and again while they are awaited.
    if (progress.in_flight == 2 && interrupts < 2) ++interrupts;
  });
  const RunResult result = runner.Run();
  EXPECT_TRUE(result.interrupted);
  EXPECT_EQ(result.records.size(), 2u);
  EXPECT_TRUE(result.records[0].cut_off);
}

TEST(Runner, AFailedTurnEndsItsConversation) {
  FakeServer server(milliseconds(1));
  server.fail_call = 1;
  const RunResult result = RunOn(server, {.users = 1}, {.turns = 4, .max_requests = 8});
  EXPECT_EQ(result.records.size(), 6u);  // two of the first conversation, four of the second
  EXPECT_TRUE(result.records[1].failed());
  EXPECT_EQ(result.abandoned, 2);
  EXPECT_EQ(server.deleted, 2);
}

TEST(Runner, ASessionOutlastsItsServer) {
  FakeServer server(milliseconds(1));
  server.fail_call = 1;
  server.away = 2;
  const RunResult result =
      RunOn(server, {.users = 1, .outlast = absl::Seconds(60)}, {.turns = 4, .max_requests = 8});
  EXPECT_EQ(result.records.size(), 8u);
  for (const Record& record : result.records) EXPECT_TRUE(record.completed());
  EXPECT_EQ(result.outlasted, 1);
  EXPECT_EQ(server.turns["s0"].size(), 5u);
}

TEST(Runner, ADeletionOutlastsItsServer) {
  for (const bool was_deleted : {false, true}) {
    FakeServer server(milliseconds(1));
    server.away_for_deletions = 2;
    server.forgets_sessions = was_deleted;
    const RunResult result =
        RunOn(server, {.users = 1, .outlast = absl::Seconds(60)}, {.turns = 2, .max_requests = 2});
    EXPECT_EQ(result.records.size(), 2u);
    EXPECT_EQ(result.delete_errors.count, 0);
    EXPECT_EQ(result.outlasted, 1);
    EXPECT_EQ(server.deleted, was_deleted ? 0 : 1);
  }
}

TEST(Runner, ADeletionThatFailsIsCounted) {
  FakeServer server(milliseconds(1));
  server.forgets_sessions = true;
  EXPECT_EQ(RunOn(server, {.users = 1}, {.turns = 2, .max_requests = 4}).delete_errors.count, 2);
  server.away_for_deletions = 1'000'000;
  const RunPlan plan{.users = 1, .outlast = absl::Milliseconds(300)};
  EXPECT_EQ(RunOn(server, plan, {.turns = 2, .max_requests = 2}).delete_errors.count, 1);
}

TEST(Runner, ASessionThatCameBackShorterHasFailed) {
  FakeServer server(milliseconds(1));
  server.fail_call = 1;
  server.lost = 1;
  const RunResult result =
      RunOn(server, {.users = 1, .outlast = absl::Seconds(60)}, {.turns = 4, .max_requests = 4});
  ASSERT_EQ(result.records.size(), 2u);
  EXPECT_TRUE(absl::IsDataLoss(result.records[1].outcome.status));
  EXPECT_EQ(result.abandoned, 2);
}

TEST(Runner, AServerThatStaysAwayHasFailed) {
  FakeServer server(milliseconds(1));
  server.fail_call = 1;
  server.away = 1'000'000;
  const RunResult result = RunOn(server, {.users = 1, .outlast = absl::Milliseconds(500)},
                                 {.turns = 4, .max_requests = 4});
  ASSERT_EQ(result.records.size(), 2u);
  EXPECT_TRUE(absl::IsUnavailable(result.records[1].outcome.status));
}

TEST(Runner, ARefusedSessionIsAFailedRequest) {
  FakeServer server(milliseconds(1));
  server.refuse_sessions = true;
  const RunResult result = RunOn(server, {.users = 1}, {.turns = 2, .max_requests = 4});
  ASSERT_EQ(result.records.size(), 2u);
  EXPECT_TRUE(result.records[0].failed());
  EXPECT_EQ(result.abandoned, 2);
  EXPECT_EQ(server.deleted, 0);
}

TEST(Experiment, WarmUpDoesNotCountAndPromptsDiffer) {
  FakeServer server(milliseconds(1));
  Result result{
      .options = *ParseOptions(std::vector<std::string>{"--warmup=3", "--requests=5", "--quiet"})};
  Calls calls = server.calls();
  std::vector<std::vector<uint32_t>> prompts;
  calls.generate = [&, generate = calls.generate](GenerateSpec spec, auto done) {
    prompts.push_back(spec.prompt);
    generate(std::move(spec), std::move(done));
  };
  RunExperiment(PromptMaker(1, 100), calls, /*interrupts=*/0, result);
  ASSERT_EQ(result.levels.size(), 1u);
  EXPECT_EQ(result.levels[0].report.completed, 5);
  ASSERT_EQ(prompts.size(), 8u);
  std::sort(prompts.begin(), prompts.end());
  EXPECT_EQ(std::unique(prompts.begin(), prompts.end()), prompts.end());
}

TEST(Experiment, ASweepKeepsAllUsersOfEachLevelBusy) {
  FakeServer server(milliseconds(50));
  Result result{.options = *ParseOptions(std::vector<std::string>{
                    "--sweep", "--concurrency=2", "--sweep-levels=2", "--sweep-time=0s",
                    "--sweep-gain=0", "--requests=40", "--quiet"})};
  RunExperiment(PromptMaker(1, 100), server.calls(), /*interrupts=*/0, result);
  ASSERT_EQ(result.levels.size(), 2u);
  EXPECT_EQ(result.levels[0].report.max_in_flight, 2);
  EXPECT_EQ(result.levels[1].report.max_in_flight, 4);
}

TEST(Experiment, AWarmUpKeepsAllUsersBusy) {
  FakeServer server(milliseconds(50));
  Result result{.options = *ParseOptions(std::vector<std::string>{"--concurrency=4", "--warmup=40",
                                                                  "--requests=1", "--quiet"})};
  RunExperiment(PromptMaker(1, 100), server.calls(), /*interrupts=*/0, result);
  EXPECT_EQ(server.most_running, 4);
}

TEST(Experiment, PromptsThatTheServerRefusesAreUsageErrors) {
  const auto options = ParseOptions(std::vector<std::string>{"--input-length=uniform:5-60"});
  EXPECT_TRUE(CheckPromptLengths(*options, 60).ok());
  const absl::Status status = CheckPromptLengths(*options, 59);
  EXPECT_EQ(status.message(),
            "--input-length: expected prompts of at most 59 tokens (what the server takes), got "
            "up to 60");
}

}  // namespace
}  // namespace ovq::load
