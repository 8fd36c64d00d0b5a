#include "server/rpc/grpc_context.h"

#include <utility>

#include "server/engine/error_facts.h"

namespace ovq {
namespace {

constexpr int kWriterThreads = 2;
constexpr int kBlockingThreads = 4;

}  // namespace

ServiceContext::ServiceContext(Engine& engine, ModelDescription description, Metrics& metrics,
                               CallLog log, const TenantRegistry* tenants)
    : engine(engine),
      description(std::move(description)),
      metrics(metrics),
      log(log),
      auth(tenants, metrics),
      writers(kWriterThreads),
      blocking(kBlockingThreads) {}

void ServiceContext::Drain() {
  draining_ = true;
  // Held during the calls, so that no listener goes away under them.
  absl::MutexLock lock(&mutex_);
  for (DrainListener* listener : listeners_) listener->OnDrain();
}

absl::Status ServiceContext::CheckServing() const {
  if (!draining_) return absl::OkStatus();
  return WithFacts(absl::UnavailableError("the server is draining"),
                   {.reason = RejectReason::kDraining});
}

void ServiceContext::AddDrainListener(DrainListener* listener) {
  absl::MutexLock lock(&mutex_);
  listeners_.insert(listener);
}

void ServiceContext::RemoveDrainListener(DrainListener* listener) {
  absl::MutexLock lock(&mutex_);
  listeners_.erase(listener);
}

}  // namespace ovq
