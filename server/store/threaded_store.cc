#include "server/store/threaded_store.h"

namespace ovq::store {

void ThreadedStore::ReadText(const std::string& id,
                             std::function<void(absl::StatusOr<std::string>)> done) {
  Run([this, begin = SteadyClock::now(), id, done = std::move(done)] {
    absl::StatusOr<std::string> text = FetchText(id, begin);
    if (!absl::IsNotFound(text.status())) {
      ReportEnd(report_, "read", begin, text.status(), text.ok() ? text->size() : 0);
    }
    done(std::move(text));
  });
}

void ThreadedStore::Read(const std::string& id,
                         std::function<void(absl::StatusOr<StoredSession>)> opened) {
  Run([this, begin = SteadyClock::now(), id, opened = std::move(opened)] {
    StoredSession stored{.id = id, .begin = begin};
    const absl::Status status = OpenStored(stored);
    if (status.ok()) return opened(std::move(stored));
    ReportRead(stored, status);
    opened(status);
  });
}

void ThreadedStore::ReportRead(const StoredSession& stored, const absl::Status& status) const {
  ReportEnd(report_, "read", stored.begin, status, status.ok() ? stored.bytes() : 0);
}

}  // namespace ovq::store
