// Tenant quotas: token buckets on a test clock, and the engine's holds and charges.
#include "server/engine/common/quota.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "absl/strings/str_cat.h"
#include "tests/server/engine/fake_model.h"

namespace ovq::engine::test {
namespace {

using testing::HasSubstr;
using Work = TenantQuotas::Work;

class FakeClock {
 public:
  Clock clock() {
    return {.steady = [this] { return now_; }};
  }
  void Advance(std::chrono::milliseconds time) { now_ += time; }

 private:
  SteadyTime now_{std::chrono::hours(1)};
};

// Admits the work, releases its hold at once, and returns the status.
absl::Status Try(TenantQuotas& quotas, const Work& work, const std::string& tenant = "a") {
  return quotas.Admit(tenant, work).status();
}
bool Admits(TenantQuotas& quotas, const Work& work, const std::string& tenant = "a") {
  return Try(quotas, work, tenant).ok();
}
TenantUse ClientUsage(const TenantQuotas& quotas, const std::string& tenant) {
  for (const TenantUse& use : quotas.Use()) {
    if (use.name == tenant) return use;
  }
  return {};
}

TEST(Quota, SessionsAndBytesAreExact) {
  auto quotas = std::make_shared<TenantQuotas>();
  quotas->SetLimits({{"a", {.sessions = 3, .state_bytes = 1000}}});
  auto first = *quotas->Admit("a", {.sessions = 2, .bytes = 600});
  const auto sessions = Try(*quotas, {.sessions = 2, .bytes = 1});
  ASSERT_FALSE(sessions.ok());
  EXPECT_EQ(GetErrorFacts(sessions).reason, RejectReason::kTenantSessions);
  EXPECT_EQ(sessions.message(), "tenant a: sessions: 2 more on top of 2, the limit is 3");
  EXPECT_FALSE(GetErrorFacts(sessions).retry_after);  // the time is unknown
  const auto bytes = Try(*quotas, {.sessions = 1, .bytes = 401});
  ASSERT_FALSE(bytes.ok());
  EXPECT_EQ(GetErrorFacts(bytes).reason, RejectReason::kTenantBytes);
  EXPECT_EQ(bytes.message(), "tenant a: state_bytes: 401 more on top of 600, the limit is 1000");
  EXPECT_TRUE(Admits(*quotas, {.sessions = 1, .bytes = 400}));
  EXPECT_TRUE(Admits(*quotas, {.sessions = 9, .bytes = 9999}, "another"));
  first->ReleasePart(1, 500);
  EXPECT_EQ(ClientUsage(*quotas, "a").sessions, 1);
  EXPECT_EQ(ClientUsage(*quotas, "a").state_bytes, 100u);
  first->ReleasePart(1, 100);
  first.reset();  // releases nothing more
  EXPECT_EQ(ClientUsage(*quotas, "a").sessions, 0);
}

TEST(Quota, RequestsRefillWithTime) {
  FakeClock clock;
  auto quotas = std::make_shared<TenantQuotas>(clock.clock());
  quotas->SetLimits({{"a", {.requests_per_second = 4}}});
  for (int i = 0; i < 4; ++i) EXPECT_TRUE(quotas->ChargeRequest("a").ok()) << i;
  const auto refused = quotas->ChargeRequest("a");
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(GetErrorFacts(refused).reason, RejectReason::kTenantRequests);
  EXPECT_EQ(refused.message(), "tenant a: requests_per_second: the limit is 4");
  EXPECT_EQ(GetErrorFacts(refused).retry_after, absl::Milliseconds(250));
  clock.Advance(std::chrono::milliseconds(249));
  EXPECT_FALSE(quotas->ChargeRequest("a").ok());
  clock.Advance(std::chrono::milliseconds(1));
  EXPECT_TRUE(quotas->ChargeRequest("a").ok());
  EXPECT_FALSE(quotas->ChargeRequest("a").ok());
  clock.Advance(std::chrono::hours(1));  // one second's worth and no more
  for (int i = 0; i < 4; ++i) EXPECT_TRUE(quotas->ChargeRequest("a").ok()) << i;
  EXPECT_FALSE(quotas->ChargeRequest("a").ok());
  EXPECT_TRUE(quotas->ChargeRequest("another").ok());
}

TEST(Quota, RateBelowOneStillLetsOneIn) {
  FakeClock clock;
  auto quotas = std::make_shared<TenantQuotas>(clock.clock());
  quotas->SetLimits({{"a", {.requests_per_second = 0.5}}});
  EXPECT_TRUE(quotas->ChargeRequest("a").ok());
  EXPECT_EQ(GetErrorFacts(quotas->ChargeRequest("a")).retry_after, absl::Seconds(2));
}

TEST(Quota, TokensMakeADebtThatIsWaitedOff) {
  FakeClock clock;
  auto quotas = std::make_shared<TenantQuotas>(clock.clock());
  quotas->SetLimits({{"a", {.tokens_per_second = 100}}});
  EXPECT_TRUE(Admits(*quotas, {.prompt_tokens = 250}));  // no prompt is too large
  quotas->ChargeTokens("a", 49);
  EXPECT_EQ(ClientUsage(*quotas, "a").tokens_left, -199);
  const auto refused = Try(*quotas, {.prompt_tokens = 1});
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(GetErrorFacts(refused).reason, RejectReason::kTenantTokens);
  EXPECT_EQ(GetErrorFacts(refused).retry_after, absl::Seconds(2));
  clock.Advance(std::chrono::milliseconds(1999));
  EXPECT_FALSE(Admits(*quotas, {.prompt_tokens = 1}));
  clock.Advance(std::chrono::milliseconds(1));
  EXPECT_TRUE(Admits(*quotas, {.prompt_tokens = 1}));
}

TEST(Quota, RefusalChargesNothing) {
  FakeClock clock;
  auto quotas = std::make_shared<TenantQuotas>(clock.clock());
  quotas->SetLimits({{"a", {.sessions = 1, .requests_per_second = 2, .tokens_per_second = 10}}});
  EXPECT_FALSE(Admits(*quotas, {.prompt_tokens = 5, .sessions = 2, .bytes = 7}));
  const TenantUse use = ClientUsage(*quotas, "a");
  EXPECT_EQ(use.requests_left, 2);
  EXPECT_EQ(use.tokens_left, 10);
  EXPECT_EQ(use.sessions, 0);
  EXPECT_EQ(use.state_bytes, 0u);
}

TEST(Quota, NewLimitsApplyAtOnceAndKeepWhatIsUsed) {
  FakeClock clock;
  auto quotas = std::make_shared<TenantQuotas>(clock.clock());
  quotas->SetLimits({{"a", {.sessions = 5, .requests_per_second = 10}}});
  const auto hold = *quotas->Admit("a", {.sessions = 4, .bytes = 1});
  quotas->SetLimits({{"a", {.sessions = 4, .requests_per_second = 2}}});
  EXPECT_EQ(ClientUsage(*quotas, "a").sessions, 4);
  EXPECT_EQ(ClientUsage(*quotas, "a").requests_left, 2);  // not more than the new size
  EXPECT_EQ(GetErrorFacts(Try(*quotas, {.sessions = 1})).reason, RejectReason::kTenantSessions);
  quotas->SetLimits({});
  EXPECT_TRUE(Admits(*quotas, {.sessions = 100}));
}

TEST(Quota, InventedNamesLeaveNoTrace) {
  auto quotas = std::make_shared<TenantQuotas>();
  for (int i = 0; i < 100; ++i) {
    EXPECT_TRUE(Admits(*quotas, {.sessions = 1, .bytes = 5}, absl::StrCat("n", i)));
    EXPECT_TRUE(Admits(*quotas, {}, absl::StrCat("m", i)));
  }
  EXPECT_TRUE(quotas->Use().empty());
}

EngineOptions WithLimits(const TenantLimits& limits, std::shared_ptr<TenantQuotas>& quotas) {
  quotas = std::make_shared<TenantQuotas>(
      Clock{.steady = [] { return SteadyTime(std::chrono::hours(1)); }});
  quotas->SetLimits({{"a", limits}});
  EngineOptions options;
  options.quotas = quotas;
  return options;
}

GenerateRequest RequestOf(const std::string& tenant, int64_t n_prompt, int64_t max_tokens) {
  GenerateRequest request = SampleRequest(SomeTokens(n_prompt, 3), max_tokens);
  request.tenant = tenant;
  request.stop.ignore_eos = true;
  return request;
}

TEST(Quota, AClientThatHoldsNothingHasItsTenantsWeight) {
  const auto quotas = std::make_shared<TenantQuotas>();
  quotas->SetLimits({{"heavy", {.weight = 4}}});
  EXPECT_EQ(quotas->ClientUsage("heavy").weight, 4);
  EXPECT_EQ(quotas->ClientUsage("other").weight, 1);
  const auto hold = quotas->Hold("heavy", 1, 100);
  EXPECT_EQ(quotas->ClientUsage("heavy").weight, 4);
}

TEST(EngineQuota, SessionsHoldTheirCapUntilDeleted) {
  std::shared_ptr<TenantQuotas> quotas;
  std::map<RejectReason, int> rejected;
  EngineEvents events;
  events.rejected = [&](RejectReason reason) { ++rejected[reason]; };
  TestEngine engine(WithLimits({.sessions = 2}, quotas), {}, events);
  SessionOptions options;
  options.tenant = "a";
  const std::string id = engine.NewSession(options).id;
  const size_t cap = engine.model().layout().bytes_cap(kDefaultSlotCap);
  EXPECT_EQ(ClientUsage(*quotas, "a").state_bytes, cap);
  options.prompt = SomeTokens(20, 1);
  engine.NewSession(options);
  EXPECT_EQ(ClientUsage(*quotas, "a").state_bytes, 2 * cap);
  Receiver<absl::StatusOr<SessionInfo>> third;
  engine->sessions().Create(options, third.callback());
  EXPECT_EQ(third.Wait().status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(engine->Submit(RequestOf("a", 4, 2), std::make_shared<TokenStream>()).code(),
            absl::StatusCode::kResourceExhausted);
  EXPECT_TRUE(engine.Run(RequestOf("b", 4, 2)).status.ok());
  // A turn of an existing session holds no further session.
  GenerateRequest turn = RequestOf("a", 4, 2);
  turn.session_id = id;
  EXPECT_TRUE(engine.Run(std::move(turn)).status.ok());
  EXPECT_TRUE(engine->sessions().Delete(id, "a").ok());
  EXPECT_EQ(ClientUsage(*quotas, "a").sessions, 1);
  EXPECT_TRUE(engine.Run(RequestOf("a", 4, 2)).status.ok());
  EXPECT_EQ(ClientUsage(*quotas, "a").sessions, 1);
  engine.SettledStats();
  engine.Destroy();
  EXPECT_EQ(rejected[RejectReason::kTenantSessions], 2);
}

TEST(EngineQuota, RequestsCountWhileTheyWaitAndGiveBackHoweverTheyEnd) {
  std::shared_ptr<TenantQuotas> quotas;
  EngineOptions options = WithLimits({.sessions = 3}, quotas);
  options.max_sessions = 2;
  TestEngine engine(options);
  engine.model().gate().CloseAt(1);
  GenerateRequest two = RequestOf("a", 4, 8);
  two.n = 2;
  const auto running = engine.Start(std::move(two));
  const auto waiting = engine.Start(RequestOf("a", 4, 8));
  EXPECT_EQ(ClientUsage(*quotas, "a").sessions, 3);
  EXPECT_EQ(engine->Submit(RequestOf("a", 4, 8), std::make_shared<TokenStream>()).code(),
            absl::StatusCode::kResourceExhausted);
  waiting->Cancel();
  engine.model().gate().Open();
  EXPECT_EQ(ReadAll(*waiting).status.code(), absl::StatusCode::kCancelled);
  EXPECT_TRUE(ReadAll(*running, 2).status.ok());
  EXPECT_EQ(ClientUsage(*quotas, "a").sessions, 0);
  EXPECT_EQ(ClientUsage(*quotas, "a").state_bytes, 0u);
}

TEST(EngineQuota, TokensOfPromptsAndAnswersAreCharged) {
  std::shared_ptr<TenantQuotas> quotas;
  TestEngine engine(WithLimits({.tokens_per_second = 50}, quotas));
  EXPECT_TRUE(engine.Run(RequestOf("a", 20, 7)).status.ok());
  EXPECT_EQ(ClientUsage(*quotas, "a").tokens_left, 23);
  ScoreRequest score;
  score.tenant = "a";
  score.prompt = SomeTokens(30, 1);
  Receiver<absl::StatusOr<ScoreResult>> scored;
  EXPECT_TRUE(engine->SubmitScore(score, nullptr, scored.callback()).ok());
  EXPECT_TRUE(scored.Wait().ok());
  EXPECT_EQ(ClientUsage(*quotas, "a").tokens_left, -7);
  const absl::Status refused =
      engine->Submit(RequestOf("a", 1, 1), std::make_shared<TokenStream>());
  EXPECT_THAT(std::string(refused.message()), HasSubstr("tokens_per_second"));
  EXPECT_EQ(GetErrorFacts(refused).retry_after, absl::Milliseconds(160));
}

TEST(EngineQuota, CallsAreChargedBeforeAnythingIsDone) {
  std::shared_ptr<TenantQuotas> quotas;
  TestEngine engine(WithLimits({.requests_per_second = 2}, quotas));
  EXPECT_TRUE(engine->ChargeRequest("a").ok());
  EXPECT_TRUE(engine.Run(RequestOf("a", 4, 1)).status.ok()) << "charged by whoever brings it";
  EXPECT_TRUE(engine->ChargeRequest("a").ok());
  EXPECT_EQ(engine->ChargeRequest("a").code(), absl::StatusCode::kResourceExhausted);
  EXPECT_TRUE(engine->ChargeRequest("b").ok());
}

TEST(EngineQuota, AllTenantsSessionsAreListedAndDeleted) {
  TestEngine engine;
  for (const char* tenant : {"a", "b", "c"}) {
    SessionOptions options;
    options.tenant = tenant;
    engine.NewSession(options);
  }
  const auto first = *engine->sessions().List(std::nullopt, 2, "");
  ASSERT_EQ(first.sessions.size(), 2u);
  const auto rest = *engine->sessions().List(std::nullopt, 2, first.next_page_token);
  ASSERT_EQ(rest.sessions.size(), 1u);
  EXPECT_EQ(rest.next_page_token, "");
  const std::set<std::string> tenants = {first.sessions[0].tenant, first.sessions[1].tenant,
                                         rest.sessions[0].tenant};
  EXPECT_EQ(tenants, (std::set<std::string>{"a", "b", "c"}));
  EXPECT_TRUE(engine->sessions().Delete(rest.sessions[0].id, std::nullopt).ok());
  EXPECT_TRUE(absl::IsNotFound(engine->sessions().Delete(rest.sessions[0].id, std::nullopt)));
}

}  // namespace
}  // namespace ovq::engine::test
