// Defines ThreadedStore, which has what all stores share: threads for work that takes long, on
// which sessions are read, and reports.
#pragma once

#include <functional>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "server/store/session_store.h"
#include "server/store/work_threads.h"

namespace ovq::store {

class ThreadedStore : public SessionStore {
 public:
  void ReadText(const std::string& id, std::function<void(absl::StatusOr<std::string>)> done) final;
  void Read(const std::string& id, std::function<void(absl::StatusOr<StoredSession>)> opened) final;
  void ReportRead(const StoredSession& stored, const absl::Status& status) const final;
  void Run(std::function<void()> work) final { bulk_.Run(std::move(work)); }

 protected:
  // `report` is called on the store's threads, of which these are named `name`.
  ThreadedStore(Report report, int threads, const std::string& name)
      : report_(std::move(report)), bulk_(threads, name) {}
  // Does all work. A store's destructor begins with it.
  void FinishWork() { bulk_.Finish(); }

  const Report report_;

 private:
  // ReadText and Read on a thread. begin: when it was called; likewise StoredSession::begin.
  virtual absl::StatusOr<std::string> FetchText(const std::string& id, SteadyTime begin) = 0;
  virtual absl::Status OpenStored(StoredSession& stored) = 0;

  WorkThreads bulk_;
};

}  // namespace ovq::store
