#include "server/store/threaded_store.h"

namespace ovq::store {

using StoreClock = std::chrono::steady_clock;

void ThreadedStore::ReadText(const std::string& id,
                             std::function<void(absl::StatusOr<std::string>)> done) {
  Run([this, begin = StoreClock::now(), id, done = std::move(done)] {
    absl::StatusOr<std::string> text = FetchText(id, begin);
    if (report_ && !absl::IsNotFound(text.status())) {
      report_({.kind = "read",
               .bytes = text.ok() ? text->size() : 0,
               .duration = TimeBetween(begin, StoreClock::now()),
               .status = text.status()});
    }
    done(std::move(text));
  });
}

void ThreadedStore::Read(const std::string& id,
                         std::function<void(absl::StatusOr<StoredSession>)> opened) {
  Run([this, begin = StoreClock::now(), id, opened = std::move(opened)] {
    StoredSession stored{.id = id, .begin = begin};
    const absl::Status status = OpenStored(stored);
    if (status.ok()) return opened(std::move(stored));
    ReportRead(stored, status);
    opened(status);
  });
}

void ThreadedStore::ReportRead(const StoredSession& stored, const absl::Status& status) const {
  if (!report_) return;
  report_({.kind = "read",
           .bytes = status.ok() ? stored.bytes() : 0,
           .duration = TimeBetween(stored.begin, StoreClock::now()),
           .status = status});
}

}  // namespace ovq::store
