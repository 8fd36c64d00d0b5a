// Admission control by itself, without a thread: the queue, reservations and eviction.
#include "server/engine/common/admission.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "server/engine/common/error_facts.h"
#include "tests/server/engine/parts.h"

namespace ovq::engine::test {
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
  std::vector<std::shared_ptr<Request>> requests;
  for (int i = 0; i < 3; ++i) requests.push_back(parts.NewRequest(900, 100));
  requests.push_back(parts.NewRequest(1, 1));
  for (const auto& request : requests) EXPECT_TRUE(parts.admission.Enqueue(request).ok());
  EXPECT_EQ(parts.admission.Next(), requests[0]);
  EXPECT_EQ(parts.pool.reserved_bytes(), large);
  EXPECT_EQ(parts.admission.Next(), requests[1]);
  EXPECT_EQ(parts.admission.Next(), nullptr) << "the third is a large one";
  EngineStats stats;
  parts.admission.AddTo(stats);
  EXPECT_EQ(stats.requests_waiting, 2);
  EXPECT_EQ(stats.waiting_prompt_tokens, 901);
  parts.Release(*requests[1]);
  EXPECT_EQ(parts.admission.Next(), requests[2]);
  EXPECT_EQ(parts.admission.Next(), nullptr) << "one byte is missing";
  parts.Release(*requests[0]);
  EXPECT_EQ(parts.admission.Next(), requests[3]);
  parts.Release(*requests[2]);
  parts.Release(*requests[3]);
  EXPECT_EQ(parts.admission.Next(), nullptr);
  EXPECT_TRUE(parts.rejected.empty());
}

TEST(Admission, CompletionsArePromisedTheirStates) {
  EngineOptions options;
  options.max_sessions = 4;
  Parts parts(options);
  const auto three = parts.NewRequest(10, 10, 3);
  const auto two = parts.NewRequest(10, 10, 2);
  EXPECT_TRUE(parts.admission.Enqueue(three).ok());
  EXPECT_TRUE(parts.admission.Enqueue(two).ok());
  EXPECT_EQ(parts.admission.Next(), three);
  EXPECT_EQ(parts.pool.sessions(), 1);
  EXPECT_EQ(parts.pool.reserved_bytes(), 3 * three->reserve_bytes);
  EXPECT_EQ(parts.admission.Next(), nullptr) << "three of four are taken or promised";
  StateHandle second = parts.admission.AcquirePromised(*three).value();
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
  options.quotas->SetLimits({{"a", {.sessions = 0}}, {"b", {.tokens_per_second = 1}}});
  Parts parts(options);
  const auto refused = [&](std::shared_ptr<Request> request) {
    return std::string(parts.admission.Enqueue(std::move(request)).message());
  };
  const auto huge = parts.NewRequest(4000, 1000, 2);
  EXPECT_EQ(GetErrorFacts(parts.admission.Enqueue(huge)),
            (ErrorFacts{.reason = RejectReason::kStateMemory,
                        .bytes_needed = 2 * huge->reserve_bytes,
                        .bytes_free = 40'000}));
  EXPECT_THAT(refused(parts.NewRequest(1, 1, 3)),
              HasSubstr("sessions: 3 needed, the server has 2"));
  EXPECT_THAT(refused(parts.NewRequest(1, 1, 1, "a")), HasSubstr("tenant a: sessions"));
  const auto queued = parts.NewRequest(1, 1);
  EXPECT_TRUE(parts.admission.Enqueue(queued).ok());
  EXPECT_THAT(refused(parts.NewRequest(1, 1)), HasSubstr("queue: 1 requests wait already"));
  Request beside;
  beside.tenant = "b";
  beside.prompt_tokens = 1;
  EXPECT_TRUE(parts.admission.Charge(beside, 0, 0).ok());
  EXPECT_FALSE(parts.admission.Charge(beside, 0, 0).ok());
  EXPECT_FALSE(parts.admission.Close(absl::ZeroDuration())) << "one waits";
  EXPECT_EQ(parts.admission.Enqueue(parts.NewRequest(1, 1)).code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(parts.admission.Enter().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(parts.rejected, ElementsAre(RejectReason::kStateMemory, RejectReason::kSessionLimit,
                                          RejectReason::kTenantSessions, RejectReason::kQueueFull,
                                          RejectReason::kTenantTokens, RejectReason::kDraining,
                                          RejectReason::kDraining));
  EXPECT_EQ(parts.admission.Next(), queued) << "what was accepted stays";
  parts.Release(*queued);
  EXPECT_TRUE(parts.admission.Close(absl::ZeroDuration()));
}

TEST(Admission, TenantsHoldTheirShareWhileTheyWait) {
  EngineOptions options;
  options.quotas = std::make_shared<TenantQuotas>();
  Parts parts(options);
  const auto request = parts.NewRequest(10, 10, 2, "a");
  EXPECT_TRUE(parts.admission.Enqueue(request).ok());
  ASSERT_EQ(options.quotas->Use().size(), 1u);
  EXPECT_EQ(options.quotas->Use()[0].sessions, 2);
  EXPECT_EQ(options.quotas->Use()[0].state_bytes, 2 * request->reserve_bytes);
  EXPECT_EQ(parts.admission.Remove([](const Request&) { return false; }).size(), 0u);
  const auto removed = parts.admission.Remove([](const Request& j) { return j.tenant == "a"; });
  EXPECT_THAT(removed, ElementsAre(request));
  removed[0]->hold.reset();
  EXPECT_TRUE(options.quotas->Use().empty());
}

// --- several clients ---

std::shared_ptr<Request> Of(Parts& parts, const char* client, int64_t n_prompt = 1) {
  std::shared_ptr<Request> request = parts.NewRequest(n_prompt, 1);
  request->client = client;
  return request;
}

TEST(Admission, WhoWouldHaveLeastGoesFirst) {
  EngineOptions options;
  options.max_sessions = 3;
  Parts parts(options);
  std::vector<std::shared_ptr<Request>> many;
  for (int i = 0; i < 6; ++i) {
    many.push_back(Of(parts, "many"));
    EXPECT_TRUE(parts.admission.Enqueue(many.back()).ok());
  }
  EXPECT_EQ(parts.admission.Next(), many[0]);
  EXPECT_EQ(parts.admission.Next(), many[1]);
  const auto one = Of(parts, "one"), large = Of(parts, "large", 3000);
  EXPECT_TRUE(parts.admission.Enqueue(large).ok());
  EXPECT_TRUE(parts.admission.Enqueue(one).ok());
  EXPECT_EQ(parts.admission.Next(), one);
  EXPECT_EQ(parts.admission.Next(), nullptr);
  parts.Release(*many[0]);
  EXPECT_EQ(parts.admission.Next(), many[2]) << "two states are less than the large one";
  parts.Release(*many[1]);
  parts.Release(*many[2]);
  parts.Release(*one);
  EXPECT_EQ(parts.admission.Next(), many[3]) << "in their own order";
  parts.Release(*many[3]);
  EXPECT_EQ(parts.admission.Next(), many[4]);
  parts.Release(*many[4]);
}

TEST(Admission, AFullQueueOfOneClientTakesAnothersFirst) {
  EngineOptions options;
  options.max_queue = 4;
  Parts parts(options);
  std::vector<std::shared_ptr<Request>> many;
  for (int i = 0; i < 4; ++i) {
    many.push_back(Of(parts, "many"));
    EXPECT_TRUE(parts.admission.Enqueue(many.back()).ok());
  }
  EXPECT_EQ(parts.admission.Enqueue(Of(parts, "many")).code(),
            absl::StatusCode::kResourceExhausted);
  EXPECT_TRUE(parts.admission.Enqueue(Of(parts, "a")).ok());
  EXPECT_TRUE(parts.admission.Enqueue(Of(parts, "a")).ok());
  EXPECT_THAT(parts.admission.DequeuePushedOut(), ElementsAre(many[3], many[2]));
  EXPECT_EQ(parts.admission.Enqueue(Of(parts, "a")).code(), absl::StatusCode::kResourceExhausted)
      << "it would have as many";
  EXPECT_TRUE(parts.admission.DequeuePushedOut().empty());
  EXPECT_EQ(GetErrorFacts(parts.admission.PushedOut()).reason, RejectReason::kQueueFull);
}

TEST(Admission, EvictsFromTheClientBeyondItsPart) {
  EngineOptions options;
  options.max_sessions = 4;
  Parts parts(options);
  std::vector<std::pair<std::string, bool>> asked;
  bool gives = false;
  std::vector<std::shared_ptr<Request>> many;
  Evictor evictor;
  evictor.evict_from = [&](const std::string& client, bool table, bool running) {
    EXPECT_TRUE(table);
    asked.emplace_back(client, running);
    if (!gives) return false;
    parts.Release(*many.back());
    many.pop_back();
    return true;
  };
  parts.admission.SetEvictor(evictor);
  for (int i = 0; i < 5; ++i) {
    const auto request = Of(parts, "many");
    EXPECT_TRUE(parts.admission.Enqueue(request).ok());
    if (parts.admission.Next() == request) many.push_back(request);
  }
  EXPECT_EQ(many.size(), 4u);
  EXPECT_TRUE(asked.empty()) << "nobody makes way for itself";
  const auto first = Of(parts, "new"), second = Of(parts, "new"), third = Of(parts, "new");
  for (const auto& request : {first, second, third}) {
    EXPECT_TRUE(parts.admission.Enqueue(request).ok());
  }
  EXPECT_EQ(parts.admission.Next(), nullptr);
  EXPECT_THAT(asked, ElementsAre(std::pair("many", true)));
  gives = true;
  EXPECT_EQ(parts.admission.Next(), first);
  EXPECT_EQ(parts.admission.Next(), second);
  EXPECT_THAT(asked.back(), testing::Eq(std::pair<std::string, bool>("many", false)))
      << "for who has something calls go on";
  const size_t n_asked = asked.size();
  EXPECT_EQ(parts.admission.Next(), nullptr) << "two of four each";
  EXPECT_EQ(asked.size(), n_asked);
  for (const auto& request : {first, second, many[0], many[1]}) parts.Release(*request);
}

TEST(Admission, TheQueueKnowsItsFirstDeadline) {
  Parts parts;
  EXPECT_EQ(parts.admission.next_deadline(), kNever);
  for (int i : {7, 3, 5}) {
    const auto request = parts.NewRequest(1, 1);
    request->deadline = parts.clock.steady + std::chrono::seconds(i);
    EXPECT_TRUE(parts.admission.Enqueue(request).ok());
  }
  EXPECT_EQ(parts.admission.next_deadline(), parts.clock.steady + std::chrono::seconds(3));
}

}  // namespace
}  // namespace ovq::engine::test
