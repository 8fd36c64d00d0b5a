#include "server/redis/redis_lease.h"

#include <time.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/thread_name.h"
#include "server/redis/redis_keys.h"
#include "server/redis/redis_scripts.h"
#include "server/store/work_threads.h"

namespace ovq::redis {
namespace {

constexpr char kListenSeconds[] = "0.1";
constexpr size_t kVerifiedTogether = 256;

int64_t NanosecondsSinceBoot() {
  timespec time = {};
  clock_gettime(CLOCK_BOOTTIME, &time);
  return int64_t{time.tv_sec} * 1'000'000'000 + time.tv_nsec;
}

}  // namespace

absl::Status RedisLease::Start() {
  RETURN_IF_ERROR(Renew(After(SteadyClock::now(), options_.patience)));
  thread_ = std::thread([this] { Loop(); });
  return absl::OkStatus();
}

void RedisLease::End() {
  if (!store::EndThread(thread_, mutex_, changed_, ending_)) return;
  (void)client_.Run({"DEL", LeaseKey(server_), AsksKey(server_)});
}

bool RedisLease::sure() const { return NanosecondsSinceBoot() < sure_until_; }

void RedisLease::Confirm(store::SessionStore::Done done) {
  {
    std::lock_guard lock(mutex_);
    confirmations_.push_back(std::move(done));
  }
  changed_.notify_all();
}

Replies RedisLease::RunTogether(const std::vector<Command>& commands, SteadyTime until,
                                bool& unanswered) {
  const auto over = [](const absl::StatusOr<Reply>& reply) {
    return reply.status().code() == kNoLease;
  };
  Replies replies = client_.RunTogether(commands, until, &unanswered);
  if (std::ranges::any_of(replies, over) && Renew().ok()) {
    replies = client_.RunTogether(commands, until, &unanswered);
  }
  for (absl::StatusOr<Reply>& reply : replies) {
    if (over(reply)) reply = absl::UnavailableError(reply.status().message());
  }
  return replies;
}

absl::Status RedisLease::Renew(SteadyTime until) {
  const std::string ms = absl::StrCat(absl::ToInt64Milliseconds(options_.lease));
  const SteadyTime begin = SteadyClock::now();
  const int64_t sent = NanosecondsSinceBoot();
  const absl::StatusOr<Reply> reply =
      client_.Run(ScriptCommand(kRenewScript, server_, "", {absl::StrCat(++renewals_), ms}), until);
  store::ReportEnd(report_, "lease", begin, reply.status());
  RETURN_IF_ERROR(reply.status());
  if (since_.exchange(reply->number) != reply->number) BeginVerify();
  renewed_ = sent;  // after verify_, for Keep
  return absl::OkStatus();
}

void RedisLease::BeginVerify() {
  ++lapses_;  // first, so that a session is verified or its acquirer sees this
  verify_ = true;
}

absl::Status RedisLease::Verify(SteadyTime until) {
  verify_ = false;
  const std::vector<std::pair<std::string, std::string>> all = sessions_.All();
  for (size_t begin = 0; begin < all.size(); begin += kVerifiedTogether) {
    const size_t end = std::min(all.size(), begin + kVerifiedTogether);
    std::vector<Command> commands;
    for (size_t i = begin; i < end; ++i) {
      commands.push_back({"HMGET", SessionKey(all[i].first), "owner", "epoch"});
    }
    const Replies replies = client_.RunTogether(commands, until);
    for (size_t i = begin; i < end; ++i) {
      const absl::StatusOr<Reply>& reply = replies[i - begin];
      if (!reply.ok()) {
        BeginVerify();
        return reply.status();
      }
      const auto& [id, epoch] = all[i];
      if (reply->items[0].text != server_ || reply->items[1].text != epoch) {
        sessions_.Lose(id, epoch);
      }
    }
  }
  return absl::OkStatus();
}

absl::Status RedisLease::Keep(SteadyTime& next, bool confirming) {
  // Whoever waits for a confirmation waits for the next connection, too.
  const SteadyTime until =
      confirming ? After(SteadyClock::now(), options_.reply_timeout) : SteadyTime();
  if (confirming || SteadyClock::now() >= next) {
    RETURN_IF_ERROR(Renew(until));
    next = After(SteadyClock::now(), options_.lease / 3);
  }
  const int64_t renewed = renewed_;
  if (verify_) RETURN_IF_ERROR(Verify(until));
  if (!verify_) sure_until_ = renewed + absl::ToInt64Nanoseconds(options_.lease);
  return absl::OkStatus();
}

absl::StatusOr<std::optional<std::string>> RedisLease::AwaitRequest(SteadyTime& next) {
  const Replies replies = client_.RunTogether(
      {{"EXISTS", LeaseKey(server_)}, {"BLPOP", AsksKey(server_), kListenSeconds}});
  for (const absl::StatusOr<Reply>& reply : replies) RETURN_IF_ERROR(reply.status());
  if (replies[0]->number == 0) next = SteadyClock::now();  // the lease ended early
  if (replies[1]->items.size() != 2) return std::nullopt;
  return replies[1]->items[1].text;
}

absl::Status RedisLease::AnswerRequest(const std::string& id) {
  const std::string epoch = sessions_.Epoch(id);
  ASSIGN_OR_RETURN(const Reply request, client_.Run({"GET", AskedKey(id)}));
  if (request.text == "1") asked_(id, epoch);
  return absl::OkStatus();
}

void RedisLease::Loop() {
  NameThisThread("lease");
  const auto pause = absl::ToChronoNanoseconds(std::min(options_.lease / 10, absl::Seconds(1)));
  SteadyTime next = After(SteadyClock::now(), options_.lease / 3);
  std::optional<std::string> asked;
  std::unique_lock lock(mutex_);
  while (!ending_ || !confirmations_.empty()) {
    const auto confirmations = std::exchange(confirmations_, {});
    lock.unlock();
    absl::Status status = Keep(next, !confirmations.empty());
    for (const store::SessionStore::Done& done : confirmations) done(status);
    // After that: a request may have waited for a server that slept, and that does not own the
    // session any more.
    if (status.ok() && asked) status = AnswerRequest(*asked);
    if (status.ok()) {
      absl::StatusOr<std::optional<std::string>> request = AwaitRequest(next);
      status = request.status();
      asked = request.ok() ? *std::move(request) : std::nullopt;
    }
    if (!status.ok()) BeginVerify();  // a Redis that comes back may have lost its last seconds
    lock.lock();
    if (!status.ok()) {
      changed_.wait_for(lock, pause, [this] { return ending_ || !confirmations_.empty(); });
    }
  }
}

}  // namespace ovq::redis
