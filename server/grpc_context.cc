#include "server/grpc_context.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "server/grpc_codec.h"

namespace ovq {
namespace {

constexpr int kWriterThreads = 2;
constexpr int kBlockingThreads = 4;

}  // namespace

ServiceContext::ServiceContext(Engine& engine, ModelDescription description, Metrics& metrics,
                               const TenantRegistry* tenants)
    : engine(engine),
      description(std::move(description)),
      metrics(metrics),
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
  return absl::UnavailableError("the server is draining");
}

void ServiceContext::AddDrainListener(DrainListener* listener) {
  absl::MutexLock lock(&mutex_);
  listeners_.insert(listener);
}

void ServiceContext::RemoveDrainListener(DrainListener* listener) {
  absl::MutexLock lock(&mutex_);
  listeners_.erase(listener);
}

absl::Time CallRecord::deadline() const {
  const std::chrono::system_clock::time_point deadline = context_->deadline();
  if (deadline == std::chrono::system_clock::time_point::max()) return absl::InfiniteFuture();
  return absl::FromChrono(deadline);
}

grpc::Status CallRecord::End(const absl::Status& status) {
  absl::Status seen = status;
  // What the client sees of a call that it gave up.
  if (context_->IsCancelled()) {
    seen = absl::Now() >= deadline() ? absl::DeadlineExceededError("deadline exceeded")
                                     : absl::CancelledError("cancelled by the client");
  }
  if (const std::optional<absl::Duration> wait = RetryAfter(seen)) {
    context_->AddTrailingMetadata("retry-after-ms", absl::StrCat(absl::ToInt64Milliseconds(*wait)));
  }
  services_.metrics.CallFinished(method_, seen.code(),
                                 absl::FromChrono(std::chrono::steady_clock::now() - start_));
  return ToGrpcStatus(seen);
}

}  // namespace ovq
