#include "server/redis/redis_client.h"

#include <algorithm>
#include <thread>
#include <utility>

#include "base/status_macros.h"

namespace ovq::redis {
namespace {

constexpr absl::Duration kFirstPause = absl::Milliseconds(10), kLongestPause = absl::Seconds(1);
constexpr int kMostDoublings = 7;
// Between attempts of a server that answers that it cannot serve now.
constexpr absl::Duration kRefusedPause = absl::Milliseconds(20);

bool AnyHas(const Replies& replies, absl::StatusCode code) {
  return std::ranges::any_of(replies, [code](const absl::StatusOr<Reply>& reply) {
    return reply.status().code() == code;
  });
}

}  // namespace

absl::Status RedisClient::Load(const std::vector<std::string>& scripts, SteadyTime until) {
  std::vector<Command> commands;
  for (const std::string& script : scripts) commands.push_back({"SCRIPT", "LOAD", script});
  Replies replies = RunTogether(commands, until);
  for (size_t i = 0; i < scripts.size(); ++i) {
    if (!replies[i].ok()) return replies[i].status();
    digests_[scripts[i]] = std::move(replies[i]->text);
  }
  return absl::OkStatus();
}

Replies RedisClient::Exchange(RedisConnection& connection,
                              const std::vector<Command>& commands) const {
  std::vector<Command> shorter = commands;
  bool any = false;
  for (Command& command : shorter) {
    if (command.size() < 2 || command[0] != "EVAL") continue;
    const auto digest = digests_.find(command[1]);
    if (digest == digests_.end()) continue;
    command[0] = "EVALSHA";
    command[1] = digest->second;
    any = true;
  }
  Replies replies = connection.RunTogether(any ? shorter : commands);
  // Scripts go when the server ends or somebody flushes them.
  if (any && AnyHas(replies, absl::StatusCode::kNotFound)) return connection.RunTogether(commands);
  return replies;
}

Replies RedisClient::RunOnce(const std::vector<Command>& commands, bool& unanswered) {
  std::unique_ptr<RedisConnection> connection;
  {
    std::lock_guard lock(mutex_);
    if (!idle_.empty()) {
      connection = std::move(idle_.back());
      idle_.pop_back();
    } else if (std::chrono::steady_clock::now() < next_attempt_) {
      return Replies(commands.size(), failure_);
    }
  }
  if (connection == nullptr) connection = std::make_unique<RedisConnection>(address_, timeout_);
  Replies replies = Exchange(*connection, commands);
  unanswered |= connection->unanswered();
  ReturnConnection(std::move(connection), replies.empty() ? absl::OkStatus() : replies[0].status());
  return replies;
}

void RedisClient::ReturnConnection(std::unique_ptr<RedisConnection> connection,
                                   const absl::Status& status) {
  std::lock_guard lock(mutex_);
  if (connection->connected()) {
    failures_ = 0;
    next_attempt_ = {};
    // One that refused because it is no primary any more is not asked again.
    if (!absl::IsUnavailable(status)) idle_.push_back(std::move(connection));
    return;
  }
  idle_.clear();  // they are broken as well, most likely
  const absl::Duration pause = kFirstPause * (1 << std::min(failures_++, kMostDoublings));
  next_attempt_ =
      std::chrono::steady_clock::now() + absl::ToChronoNanoseconds(std::min(pause, kLongestPause));
  failure_ = status;
}

SteadyTime RedisClient::NextAttempt() const {
  std::lock_guard lock(mutex_);
  return std::max(next_attempt_,
                  std::chrono::steady_clock::now() + absl::ToChronoNanoseconds(kRefusedPause));
}

Replies RedisClient::RunTogether(const std::vector<Command>& commands, SteadyTime until,
                                 bool* unanswered) {
  bool ignored = false;
  for (;;) {
    Replies replies = RunOnce(commands, unanswered == nullptr ? ignored : *unanswered);
    if (!AnyHas(replies, absl::StatusCode::kUnavailable)) return replies;
    const SteadyTime next = NextAttempt();
    if (next > until) return replies;
    std::this_thread::sleep_until(next);
  }
}

absl::StatusOr<Reply> RedisClient::Run(Command command, SteadyTime until) {
  return std::move(RunTogether({std::move(command)}, until)[0]);
}

}  // namespace ovq::redis
