#include "server/s3/s3_writer.h"

#include <utility>

#include "absl/strings/str_cat.h"

namespace ovq::s3 {
namespace {

constexpr size_t kMostChanges = size_t{1} << 16;
constexpr size_t kMostTogether = 256;  // entries of one session
constexpr int kWriterThreads = 16;

}  // namespace

S3Writer::S3Writer(S3Client& client, OwnedSessions& sessions, const S3StoreOptions& options,
                   store::Report report)
    : client_(client),
      sessions_(sessions),
      options_(options),
      report_(std::move(report)),
      threads_(kWriterThreads, "journal") {}

void S3Writer::Finish() { threads_.Finish(); }

void S3Writer::Enqueue(S3Change change) {
  const std::string id = change.id;
  {
    std::lock_guard lock(mutex_);
    const bool refusable = !change.always && change.kind != nullptr && change.status.ok();
    if (waiting_ >= kMostChanges && refusable) {
      change.entry.clear();
      change.write = nullptr;
      change.status = absl::ResourceExhaustedError(absl::StrCat(
          "session ", change.id, ": ", kMostChanges, " changes wait for the object store"));
    }
    ++waiting_;
    const auto [queue, idle] = by_id_.try_emplace(id);
    queue->second.push_back(std::move(change));
    if (!idle) return;
  }
  threads_.Run([this, id] { MakeNext(id); });
}

void S3Writer::Touch(const std::string& id, store::SessionStore::Done done) {
  S3Change change{.kind = nullptr,
                  .id = id,
                  .term = sessions_.Term(id),
                  .begin = std::chrono::steady_clock::now()};
  change.done = std::move(done);
  change.write = [this](S3Change& self) {
    const auto keep = [](SessionObject&) { return absl::OkStatus(); };
    return sessions_.Commit(self.id, self.term, keep, absl::OkStatus(),
                            After(std::chrono::steady_clock::now(), options_.reply_timeout));
  };
  Enqueue(std::move(change));
}

void S3Writer::MakeNext(const std::string& id) {
  const auto is_entry = [](const S3Change& change) { return change.status.ok() && !change.write; };
  Changes changes;
  {
    std::lock_guard lock(mutex_);
    std::deque<S3Change>& queue = by_id_[id];
    do {
      changes.push_back(std::move(queue.front()));
      queue.pop_front();
    } while (is_entry(changes.back()) && !queue.empty() && is_entry(queue.front()) &&
             queue.front().term == changes.back().term && changes.size() < kMostTogether);
    waiting_ -= changes.size();
  }
  if (is_entry(changes.front())) {
    WriteEntries(changes);
  } else {
    S3Change& change = changes.front();
    if (change.status.ok()) change.status = change.write(change);
    store::FinishChange(report_, change);
  }
  {
    std::lock_guard lock(mutex_);
    const auto queue = by_id_.find(id);
    if (queue->second.empty()) {
      by_id_.erase(queue);
      return;
    }
  }
  threads_.Run([this, id] { MakeNext(id); });  // behind other sessions
}

// Stores the entries of one session with one request, and reports each.
void S3Writer::WriteEntries(Changes& entries) {
  const S3Change& first = entries.front();
  std::string together;
  for (const S3Change& change : entries) together += change.entry;
  const absl::Status gone =
      absl::NotFoundError(absl::StrCat("session ", first.id, ": not found in the object store"));
  const SteadyTime until = Deadline(first);
  const absl::Status status = sessions_.Commit(
      first.id, first.term,
      [&](SessionObject& object) {
        return AppendToJournal(client_, first.id, together, until, object);
      },
      gone, until);
  for (S3Change& change : entries) {
    change.status = status;
    store::FinishChange(report_, change);
  }
}

}  // namespace ovq::s3
