// Who is let in, when, and with how much memory; no thread.
#include "server/engine/admission.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "server/engine/error_facts.h"
#include "tests/server/engine/parts.h"

namespace ovq::test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

EngineOptions WithMemory(size_t bytes) {
  EngineOptions options;
  options.state_memory_bytes = bytes;
  return options;
}

TEST(Admission, IsInOrderAndExactToTheByte) {
  const size_t large = FakeModel().layout().bytes_at(1000, kDefaultSlotCap);
  const size_t small = FakeModel().layout().bytes_at(2, kDefaultSlotCap);
  Parts parts(WithMemory(2 * large + small - 1));
  std::vector<std::shared_ptr<Job>> jobs;
  for (int i = 0; i < 3; ++i) jobs.push_back(parts.NewJob(900, 100));
  jobs.push_back(parts.NewJob(1, 1));
  for (const auto& job : jobs) EXPECT_TRUE(parts.admission.Enqueue(job).ok());
  EXPECT_EQ(parts.admission.Next(), jobs[0]);
  EXPECT_EQ(parts.pool.reserved_bytes(), large);
  EXPECT_EQ(parts.admission.Next(), jobs[1]);
  EXPECT_EQ(parts.admission.Next(), nullptr) << "the third is a large one";
  EngineStats stats;
  parts.admission.AddTo(stats);
  EXPECT_EQ(stats.requests_waiting, 2);
  EXPECT_EQ(stats.waiting_prompt_tokens, 901);
  parts.Release(*jobs[1]);
  EXPECT_EQ(parts.admission.Next(), jobs[2]);
  EXPECT_EQ(parts.admission.Next(), nullptr) << "one byte is missing";
  parts.Release(*jobs[0]);
  EXPECT_EQ(parts.admission.Next(), jobs[3]);
  parts.Release(*jobs[2]);
  parts.Release(*jobs[3]);
  EXPECT_EQ(parts.admission.Next(), nullptr);
  EXPECT_TRUE(parts.rejected.empty());
}

TEST(Admission, CompletionsArePromisedTheirStates) {
  EngineOptions options;
  options.max_sessions = 4;
  Parts parts(options);
  const auto three = parts.NewJob(10, 10, 3);
  const auto two = parts.NewJob(10, 10, 2);
  EXPECT_TRUE(parts.admission.Enqueue(three).ok());
  EXPECT_TRUE(parts.admission.Enqueue(two).ok());
  EXPECT_EQ(parts.admission.Next(), three);
  EXPECT_EQ(parts.pool.sessions(), 1);
  EXPECT_EQ(parts.pool.reserved_bytes(), 3 * three->reserve_bytes);
  EXPECT_EQ(parts.admission.Next(), nullptr) << "three of four are taken or promised";
  StateHandle second = parts.admission.TakePromised(*three);
  EXPECT_EQ(parts.pool.sessions(), 2);
  EXPECT_EQ(parts.pool.reserved_bytes(), 3 * three->reserve_bytes);
  EXPECT_EQ(second.reserved_bytes, three->reserve_bytes);
  parts.pool.Release(second);
  EXPECT_EQ(parts.admission.Next(), two);
  parts.Release(*two);
  parts.Release(*three);
  EXPECT_EQ(parts.pool.reserved_bytes(), 0u);
}

TEST(Admission, RefusalsNameTheLimitAndAreTold) {
  EngineOptions options = WithMemory(40'000);
  options.max_sessions = 2;
  options.max_queue = 1;
  options.quotas = std::make_shared<TenantQuotas>();
  options.quotas->SetLimits({{"a", {.sessions = 0}}, {"b", {.requests_per_second = 1}}});
  Parts parts(options);
  const auto refused = [&](std::shared_ptr<Job> job) {
    return std::string(parts.admission.Enqueue(std::move(job)).message());
  };
  const auto huge = parts.NewJob(4000, 1000, 2);
  EXPECT_EQ(FactsOf(parts.admission.Enqueue(huge)),
            (ErrorFacts{.reason = RejectReason::kStateMemory,
                        .bytes_needed = 2 * huge->reserve_bytes,
                        .bytes_free = 40'000}));
  EXPECT_THAT(refused(parts.NewJob(1, 1, 3)), HasSubstr("sessions: 3 needed, the server has 2"));
  EXPECT_THAT(refused(parts.NewJob(1, 1, 1, "a")), HasSubstr("tenant a: sessions"));
  const auto queued = parts.NewJob(1, 1);
  EXPECT_TRUE(parts.admission.Enqueue(queued).ok());
  EXPECT_THAT(refused(parts.NewJob(1, 1)), HasSubstr("queue: 1 requests wait already"));
  Job beside;
  beside.tenant = "b";
  EXPECT_TRUE(parts.admission.Charge(beside, 0, 0).ok());
  EXPECT_FALSE(parts.admission.Charge(beside, 0, 0).ok());
  EXPECT_FALSE(parts.admission.Close(absl::ZeroDuration())) << "one waits";
  EXPECT_EQ(parts.admission.Enqueue(parts.NewJob(1, 1)).code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(parts.admission.Enter().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(parts.rejected, ElementsAre(RejectReason::kStateMemory, RejectReason::kSessionLimit,
                                          RejectReason::kTenantSessions, RejectReason::kQueueFull,
                                          RejectReason::kTenantRequests, RejectReason::kDraining,
                                          RejectReason::kDraining));
  EXPECT_EQ(parts.admission.Next(), queued) << "what was accepted stays";
  parts.Release(*queued);
  EXPECT_TRUE(parts.admission.Close(absl::ZeroDuration()));
}

TEST(Admission, TenantsHoldTheirShareWhileTheyWait) {
  EngineOptions options;
  options.quotas = std::make_shared<TenantQuotas>();
  Parts parts(options);
  const auto job = parts.NewJob(10, 10, 2, "a");
  EXPECT_TRUE(parts.admission.Enqueue(job).ok());
  ASSERT_EQ(options.quotas->Use().size(), 1u);
  EXPECT_EQ(options.quotas->Use()[0].sessions, 2);
  EXPECT_EQ(options.quotas->Use()[0].state_bytes, 2 * job->reserve_bytes);
  EXPECT_EQ(parts.admission.Remove([](const Job&) { return false; }).size(), 0u);
  const auto removed = parts.admission.Remove([](const Job& j) { return j.tenant == "a"; });
  EXPECT_THAT(removed, ElementsAre(job));
  removed[0]->hold.reset();
  EXPECT_TRUE(options.quotas->Use().empty());
}

TEST(Admission, TheQueueKnowsItsFirstDeadline) {
  Parts parts;
  EXPECT_EQ(parts.admission.next_deadline(), kNever);
  for (int i : {7, 3, 5}) {
    const auto job = parts.NewJob(1, 1);
    job->deadline = parts.clock.steady + std::chrono::seconds(i);
    EXPECT_TRUE(parts.admission.Enqueue(job).ok());
  }
  EXPECT_EQ(parts.admission.next_deadline(), parts.clock.steady + std::chrono::seconds(3));
}

}  // namespace
}  // namespace ovq::test
