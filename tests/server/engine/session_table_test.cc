// The session table on test clocks, without an engine thread.
#include "server/engine/sessions/session_table.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "server/engine/common/error_facts.h"
#include "tests/server/engine/parts.h"

namespace ovq::engine::test {
namespace {

SessionOptions OfTenant(const std::string& tenant, const std::string& key = "") {
  SessionOptions options;
  options.key = key;
  options.tenant = tenant;
  return options;
}

using testing::ElementsAre;

absl::Status Nothing(const Session&) { return absl::OkStatus(); }

// A turn's request on a session that it has claimed.
std::shared_ptr<Request> Claimed(Parts& parts, const std::string& id) {
  EXPECT_TRUE(parts.admission.Enter().ok());
  auto request = parts.NewRequest(1, 1);
  request->session = *parts.sessions.table.Claim(id, "", Nothing);
  request->sequence = request->session;
  return request;
}
void End(Parts& parts, Request& request) {
  parts.sessions.turns.EndTurn(request,
                               [](const absl::Status& status) { EXPECT_TRUE(status.ok()); });
  parts.admission.Leave();
}

TEST(SessionTable, ExpireByTheSteadyClockWhateverTheWallClockShows) {
  Parts parts;
  const std::string id = parts.Open(Lasting(absl::Seconds(60)))->id;
  const SteadyTime opened = parts.clock.steady;
  EXPECT_EQ(parts.sessions.table.next_expiry(), opened + std::chrono::seconds(60));
  for (absl::Duration jump : {absl::Hours(9999), -absl::Hours(19999)}) {
    parts.clock.wall += jump;
    parts.sessions.removal.Expire(parts.clock.steady);
    EXPECT_TRUE(parts.sessions.table.Get(id, "").ok());
  }
  parts.clock.Advance(absl::Seconds(60) - absl::Nanoseconds(1));
  parts.sessions.removal.Expire(parts.clock.steady);
  EXPECT_TRUE(parts.sessions.table.Get(id, "").ok());
  parts.clock.Advance(absl::Nanoseconds(1));
  parts.sessions.removal.Expire(parts.clock.steady);
  EXPECT_TRUE(absl::IsNotFound(parts.sessions.table.Get(id, "").status()));
  EXPECT_EQ(parts.pool.sessions(), 0);
  EXPECT_EQ(parts.sessions.table.next_expiry(), kNever);
  EXPECT_THAT(parts.events, ElementsAre("open", "expire"));
}

TEST(SessionTable, UseKeepsThemAndBusyOnesDoNotExpire) {
  Parts parts;
  const absl::Time created = parts.clock.wall;
  const std::string id = parts.Open(Lasting(absl::Seconds(60)))->id;
  parts.clock.Advance(absl::Seconds(50));
  const auto request = Claimed(parts, id);
  parts.clock.Advance(absl::Seconds(50));
  parts.sessions.removal.Expire(parts.clock.steady);
  EXPECT_TRUE(parts.sessions.table.Get(id, "")->busy);
  End(parts, *request);
  const SessionInfo info = *parts.sessions.table.Get(id, "");
  EXPECT_FALSE(info.busy);
  EXPECT_EQ(info.created, created);
  EXPECT_EQ(info.last_used, created + absl::Seconds(100));
  EXPECT_EQ(info.expires, created + absl::Seconds(160));
  parts.clock.Advance(absl::Seconds(59));
  parts.sessions.removal.Expire(parts.clock.steady);
  EXPECT_TRUE(parts.sessions.table.Get(id, "").ok());
  parts.clock.Advance(absl::Seconds(1));
  parts.sessions.removal.Expire(parts.clock.steady);
  EXPECT_FALSE(parts.sessions.table.Get(id, "").ok());
}

TEST(SessionTable, WhatCallersSeeChangesWhenItIsPublished) {
  Parts parts;
  const SessionInfo opened = *parts.Open();
  const auto request = Claimed(parts, opened.id);
  EXPECT_EQ(parts.sessions.table.Claim(opened.id, "", Nothing).status().code(),
            absl::StatusCode::kFailedPrecondition);
  parts.pool.Grow(request->session->state, 40);
  request->session->pending = 3;
  EXPECT_EQ(parts.sessions.table.Get(opened.id, "")->position, 0);
  EngineStats stats;
  parts.sessions.table.AddTo(stats);
  EXPECT_EQ(stats.equivalent_kv_cache_bytes + static_cast<size_t>(stats.live_slots), 0u);

  parts.sessions.turns.PublishProgress(*request);
  const model::StateLayout& layout = parts.model.layout();
  SessionInfo info = *parts.sessions.table.Get(opened.id, "");
  EXPECT_TRUE(info.busy);
  EXPECT_EQ(info.position, 41);
  EXPECT_EQ(info.state_bytes, layout.bytes_at(40, kDefaultSlotCap));
  EXPECT_EQ(info.state_bytes_cap, layout.bytes_cap(kDefaultSlotCap));
  EXPECT_EQ(info.live_slots, layout.LiveSlotsAt(40, kDefaultSlotCap));
  stats = {};
  parts.sessions.table.AddTo(stats);
  EXPECT_EQ(stats.sessions_idle, 0);
  EXPECT_EQ(stats.live_slots, info.live_slots);
  EXPECT_EQ(stats.equivalent_kv_cache_bytes, 41'000u);

  End(parts, *request);
  info = *parts.sessions.table.Get(opened.id, "");
  EXPECT_EQ(info.prompt_tokens_total, 41);
  parts.sessions.removal.Delete(opened.id, "", parts.clock.steady,
                                [](const absl::Status& status) { EXPECT_TRUE(status.ok()); });
  stats = {};
  parts.sessions.table.AddTo(stats);
  EXPECT_EQ(stats.sessions_idle + stats.live_slots, 0);
  EXPECT_EQ(stats.equivalent_kv_cache_bytes, 0u);
}

TEST(SessionTable, ADeletedBusyOneKeepsItsMemoryUntilItsTurnEnds) {
  Parts parts;
  const std::string id = parts.Open()->id;
  const auto request = Claimed(parts, id);
  EXPECT_TRUE(CheckAlive(*request, parts.clock.steady).ok());
  parts.sessions.removal.Delete(id, "", parts.clock.steady,
                                [](const absl::Status& status) { EXPECT_TRUE(status.ok()); });
  EXPECT_TRUE(absl::IsNotFound(parts.sessions.table.Get(id, "").status()));
  EXPECT_FALSE(CheckAlive(*request, parts.clock.steady).ok());
  parts.sessions.turns.PublishProgress(*request);
  EXPECT_EQ(parts.pool.sessions(), 1);
  End(parts, *request);
  EXPECT_EQ(parts.pool.sessions(), 0);
  EXPECT_THAT(parts.events, ElementsAre("open", "close"));
}

TEST(SessionTable, AClaimThatIsRefusedLeavesTheSessionAsItWas) {
  Parts parts;
  const std::string id = parts.Open()->id;
  const auto refuse = [](const Session&) { return absl::InvalidArgumentError("no"); };
  EXPECT_EQ(parts.sessions.table.Claim(id, "", refuse).status().message(), "no");
  EXPECT_FALSE(parts.sessions.table.Get(id, "")->busy);
  EXPECT_TRUE(absl::IsNotFound(parts.sessions.table.Claim(id, "other", Nothing).status()));
}

TEST(SessionTable, PagesAreOrderedByIdAndOfOneTenant) {
  Parts parts;
  std::vector<std::string> ids;
  for (const char* key : {"c", "a", "b"}) {
    ids.push_back(parts.Open(OfTenant("blue", key))->id);
    EXPECT_EQ(ids.back().substr(0, 2), std::string(key) + ".");
    parts.Open(OfTenant("red")).IgnoreError();
  }
  const SessionPage first = *parts.sessions.table.List("blue", 2, "");
  ASSERT_EQ(first.sessions.size(), 2u);
  EXPECT_EQ(first.sessions[0].id, ids[1]);
  EXPECT_EQ(first.next_page_token, ids[2]);
  const SessionPage rest = *parts.sessions.table.List("blue", 2, first.next_page_token);
  ASSERT_EQ(rest.sessions.size(), 1u);
  EXPECT_EQ(rest.sessions[0].id, ids[0]);
  EXPECT_EQ(rest.next_page_token, "");
  EXPECT_EQ(parts.sessions.table.List(std::nullopt, 10, "")->sessions.size(), 6u);
  EXPECT_EQ(parts.sessions.table.List("blue", -1, "").status().code(),
            absl::StatusCode::kInvalidArgument);
}

TEST(SessionTable, TheLogHasNoIdThatTheCallerInvented) {
  Parts parts;
  const std::string id = "0123456789abcdef0123456789abcdef";
  EXPECT_EQ(LogText(parts.sessions.table.Get(id, {}).status()), "session " + id + ": not found");
  const absl::Status invented = parts.sessions.table.Get("my secret", {}).status();
  EXPECT_EQ(LogText(invented), "session_id: not found, and no session's id");
  EXPECT_EQ(invented.message(), "session my secret: not found");
  EXPECT_EQ(parts.sessions.table.Get(std::string(129, 'x'), {}).status().message(),
            "session_id: not found, and longer than any id");
}

TEST(SessionTable, WhatCannotOpenTakesNothing) {
  EngineOptions options;
  options.state_memory_bytes = 3 * FakeModel().layout().bytes_cap(kDefaultSlotCap) - 1;
  options.max_sessions = 3;
  options.quotas = std::make_shared<TenantQuotas>();
  options.quotas->SetLimits({{"a", {.sessions = 0}}});
  Parts parts(options);
  EXPECT_FALSE(parts.Open(OfTenant("a")).ok());
  EXPECT_EQ(parts.pool.sessions(), 0);
  EXPECT_TRUE(parts.Open().ok());
  EXPECT_TRUE(parts.Open().ok());
  EXPECT_FALSE(parts.Open().ok());
  SessionOptions small;
  small.slot_cap = 8;
  EXPECT_TRUE(parts.Open(small).ok());
  EXPECT_FALSE(parts.Open(small).ok());
  EXPECT_TRUE(parts.admission.Close(absl::ZeroDuration())) << "nothing of it goes on";
  EXPECT_FALSE(parts.Open().ok());
  EXPECT_THAT(parts.rejected, ElementsAre(RejectReason::kTenantSessions, RejectReason::kStateMemory,
                                          RejectReason::kSessionLimit, RejectReason::kDraining));
}

}  // namespace
}  // namespace ovq::engine::test
