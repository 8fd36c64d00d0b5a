// The constraints of requests: read from messages, compiled on the threads of calls, and shared.
#pragma once

#include <cstddef>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "base/byte_budget.h"
#include "ovq/v1/inference.pb.h"
#include "server/calls/answer_form.h"
#include "server/engine/common/answer_constraint.h"
#include "server/telemetry/metrics.h"

namespace ovq::server {

// The source of the message's constraint; nothing without one. prefix: stands before the names of
// fields. InvalidArgument: a field beyond its limit, or a constraint that asks for nothing.
absl::StatusOr<std::optional<PlacedSource>> ReadConstraint(const v1::SamplingParams& from,
                                                           const std::string& prefix);

// Compiled constraints by their forms, for all callers. Any thread.
class ConstraintCache {
 public:
  // bytes: of constraints that are kept, in use or being compiled, shared among clients as
  // ByteBudget does. At most half of it is kept for later calls, and at most a quarter for one
  // client: the oldest of whoever has most go first.
  ConstraintCache(size_t bytes, Metrics& metrics);

  // The form's constraint, compiled in up to a second where it is new. InvalidArgument names the
  // field and the place in it that cannot be kept; ResourceExhausted: no memory for this client.
  absl::StatusOr<std::shared_ptr<const engine::AnswerConstraint>> Get(const FramedForm& form,
                                                                      const std::string& client);

 private:
  struct Entry {
    std::string client;
    std::shared_ptr<const engine::AnswerConstraint> constraint;
    std::list<std::string>::iterator use;
  };
  using Entries = std::map<std::string, Entry>;

  std::shared_ptr<const engine::AnswerConstraint> Find(const std::string& key);
  void Keep(const std::string& key, const std::string& client,
            std::shared_ptr<const engine::AnswerConstraint> constraint);
  // Drops the least recently used of the client's.
  void DropOldest(const std::string& client) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const size_t bytes_;
  const std::shared_ptr<ByteBudget> budget_;
  Metrics& metrics_;
  absl::Mutex mutex_;
  Entries entries_ ABSL_GUARDED_BY(mutex_);                     // by encoded form
  std::list<std::string> uses_ ABSL_GUARDED_BY(mutex_);         // keys, the last used first
  std::map<std::string, size_t> held_ ABSL_GUARDED_BY(mutex_);  // bytes of each client's entries
  size_t total_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace ovq::server
