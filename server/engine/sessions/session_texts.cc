#include "server/engine/sessions/session_texts.h"

#include <algorithm>

namespace ovq::engine {
namespace {

constexpr size_t kEntryBytes = 512;  // of an entry beside its text

}  // namespace

void SessionTexts::Put(const SessionInfo& session, SessionText text, StatusCallback done) {
  const size_t bytes = text->size() + kEntryBytes;
  std::vector<std::string> dropped;
  {
    std::lock_guard lock(mutex_);
    Drop(session.id);
    dropped = Add(session.id, {session.created, bytes, store_ == nullptr ? text : nullptr});
  }
  RemoveFiles(dropped);
  const bool kept = std::ranges::find(dropped, session.id) == dropped.end();
  if (store_ == nullptr || !kept) return done(absl::OkStatus());
  store_->PutText(session.id, std::move(text), std::move(done));
}

void SessionTexts::Get(const std::string& id,
                       const std::function<absl::Status(size_t bytes)>& reserve,
                       SessionTextCallback done) const {
  Entry entry;
  {
    std::lock_guard lock(mutex_);
    const auto found = entries_.find(id);
    if (found != entries_.end()) entry = found->second;
  }
  if (entry.bytes == 0) return done(nullptr);
  if (absl::Status status = reserve(entry.bytes); !status.ok()) return done(std::move(status));
  if (store_ == nullptr) return done(entry.text);
  // The store has reported a damaged text; its session goes on without it.
  store_->ReadText(id, [done = std::move(done)](absl::StatusOr<std::string> text) {
    if (text.ok()) return done(std::make_shared<const std::string>(*std::move(text)));
    if (absl::IsNotFound(text.status()) || absl::IsDataLoss(text.status())) return done(nullptr);
    done(text.status());
  });
}

void SessionTexts::AddFound(const SessionInfo& session, size_t bytes) {
  if (bytes == 0) return;
  std::vector<std::string> dropped;
  {
    std::lock_guard lock(mutex_);
    dropped = Add(session.id, {session.created, bytes + kEntryBytes});
  }
  RemoveFiles(dropped);
}

void SessionTexts::Forget(const std::string& id) {
  std::lock_guard lock(mutex_);
  Drop(id);
}

std::vector<std::string> SessionTexts::Add(const std::string& id, Entry entry) {
  if (entry.bytes > budget_) return {id};
  std::vector<std::string> dropped;
  bytes_ += entry.bytes;
  by_age_.emplace(entry.created, id);
  entries_.emplace(id, std::move(entry));
  while (bytes_ > budget_) {
    dropped.push_back(by_age_.begin()->second);
    Drop(dropped.back());
  }
  return dropped;
}

void SessionTexts::Drop(const std::string& id) {
  const auto found = entries_.find(id);
  if (found == entries_.end()) return;
  bytes_ -= found->second.bytes;
  by_age_.erase({found->second.created, id});
  entries_.erase(found);
}

void SessionTexts::RemoveFiles(const std::vector<std::string>& ids) const {
  for (const std::string& id : ids) {
    if (store_ != nullptr) store_->RemoveText(id);
  }
}

}  // namespace ovq::engine
