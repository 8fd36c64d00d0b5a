#include "server/redis/redis_writer.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/thread_name.h"
#include "server/redis/redis_scripts.h"
#include "server/store/work_threads.h"

namespace ovq::redis {
namespace {

constexpr size_t kPipelined = 256;  // changes that are looked at together
constexpr size_t kMostChanges = size_t{1} << 16;

}  // namespace

RedisWriter::RedisWriter(RedisClient& client, RedisOwnership& ownership,
                         const RedisStoreOptions& options, store::Report report)
    : client_(client), ownership_(ownership), options_(options), report_(std::move(report)) {
  thread_ = std::thread([this] { Loop(); });
}

void RedisWriter::Finish() { store::EndThread(thread_, mutex_, changed_, ending_); }

RedisChange RedisWriter::NewChange(const char* kind, const std::string& id,
                                   store::SessionStore::Done done) const {
  return {.kind = kind,
          .id = id,
          .begin = SteadyClock::now(),
          .epoch = ownership_.sessions().Epoch(id),
          .done = std::move(done)};
}

void RedisWriter::Enqueue(RedisChange change) {
  {
    std::lock_guard lock(mutex_);
    const bool refusable = !change.always && change.kind != nullptr && change.status.ok();
    if (changes_.size() >= kMostChanges && refusable) {
      change.entry.clear();
      change.write = nullptr;
      change.status = absl::ResourceExhaustedError(
          absl::StrCat("session ", change.id, ": ", kMostChanges, " changes wait for Redis"));
    }
    changes_.push_back(std::move(change));
  }
  changed_.notify_all();
}

RedisWriter::Sent RedisWriter::SendAll(std::vector<Command> commands, const RedisChange& first) {
  const bool wait = options_.replicas > 0;
  if (wait) {
    commands.push_back({"WAIT", absl::StrCat(options_.replicas),
                        absl::StrCat(absl::ToInt64Milliseconds(options_.reply_timeout / 2))});
  }
  Sent sent;
  sent.replies = ownership_.lease().RunTogether(commands, Deadline(first), sent.unanswered);
  if (!wait) return sent;
  const absl::StatusOr<Reply> had = std::move(sent.replies.back());
  sent.replies.pop_back();
  sent.replicated = had.status();
  if (had.ok() && had->number < options_.replicas) {
    sent.replicated = absl::UnavailableError(
        absl::StrCat(client_.address().Text(), ": ", had->number,
                     " replicas have the change, expected ", options_.replicas));
  }
  return sent;
}

absl::StatusOr<Reply> RedisWriter::Send(const Command& command, const RedisChange& change) {
  Sent sent = SendAll({command}, change);
  if (sent.replies[0].ok() && !sent.replicated.ok()) return sent.replicated;
  return std::move(sent.replies[0]);
}

absl::Status RedisWriter::Write(const char* script, const RedisChange& change,
                                const std::optional<std::string>& before,
                                const std::vector<std::string>& arguments) {
  const WriteNumber write = ownership_.sessions().NextWrite(change.id, change.epoch);
  const Sent sent = SendAll(
      {ownership_.Script(script, write, before.value_or(write.Before()), arguments)}, change);
  const absl::Status status = ownership_.sessions().EndWrite(
      write, sent.replies[0], absl::OkStatus(), sent.unanswered, /*entry=*/false);
  return status.ok() ? sent.replicated : status;
}

// Sends the entries of all sessions together, and reports each.
void RedisWriter::WriteEntries(std::vector<RedisChange>& changes, size_t begin, size_t end) {
  std::vector<Command> commands;
  std::vector<WriteNumber> writes;
  for (size_t i = begin; i < end; ++i) {
    RedisChange& change = changes[i];
    WriteNumber write = ownership_.sessions().NextWrite(change.id, change.epoch);
    commands.push_back(ownership_.Script(kAppendScript, write, write.Before(), {change.entry}));
    writes.push_back(std::move(write));
  }
  const Sent sent = SendAll(std::move(commands), changes[begin]);
  for (size_t i = 0; i < writes.size(); ++i) {
    RedisChange& change = changes[begin + i];
    const absl::Status gone =
        absl::NotFoundError(absl::StrCat("session ", change.id, ": not found in Redis"));
    change.status = ownership_.sessions().EndWrite(writes[i], sent.replies[i], gone,
                                                   sent.unanswered, /*entry=*/true);
    if (change.status.ok()) change.status = sent.replicated;
    store::FinishChange(report_, change);
  }
}

void RedisWriter::Loop() {
  NameThisThread("journal");
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [this] { return !changes_.empty() || ending_; });
    if (changes_.empty()) return;
    std::vector<RedisChange> changes;
    while (!changes_.empty() && changes.size() < kPipelined) {
      changes.push_back(std::move(changes_.front()));
      changes_.pop_front();
    }
    lock.unlock();
    const auto is_entry = [](const RedisChange& change) {
      return change.status.ok() && !change.write;
    };
    for (size_t begin = 0, end = 0; begin < changes.size(); begin = end) {
      while (end < changes.size() && is_entry(changes[end])) ++end;
      if (end > begin) {
        WriteEntries(changes, begin, end);
        continue;
      }
      RedisChange& change = changes[end++];
      if (change.status.ok()) change.status = change.write(change);
      store::FinishChange(report_, change);
    }
    lock.lock();
  }
}

}  // namespace ovq::redis
