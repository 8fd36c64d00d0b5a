#include "server/grpc_context.h"

#include <algorithm>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "server/grpc_codec.h"

namespace ovq {
namespace {

constexpr int kWriterThreads = 2;
constexpr int kBlockingThreads = 4;
constexpr size_t kMaxTenantName = 64;

}  // namespace

ServiceContext::ServiceContext(Engine& engine, ModelDescription description, Metrics& metrics)
    : engine(engine),
      description(std::move(description)),
      metrics(metrics),
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

absl::StatusOr<std::string> TenantOf(const grpc::CallbackServerContext& context) {
  const auto [begin, end] = context.client_metadata().equal_range("ovq-tenant");
  if (begin == end) return std::string();
  const std::string name(begin->second.data(), begin->second.size());
  const bool known_characters = std::all_of(name.begin(), name.end(), [](unsigned char c) {
    return absl::ascii_isalnum(c) || c == '.' || c == '_' || c == '-';
  });
  if (std::next(begin) != end || name.empty() || name.size() > kMaxTenantName ||
      !known_characters) {
    return absl::InvalidArgumentError(
        "metadata ovq-tenant: expected one name of 1 to 64 characters A-Z a-z 0-9 . _ -");
  }
  return name;
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
  services_.metrics.CallFinished(method_, seen.code(),
                                 absl::FromChrono(std::chrono::steady_clock::now() - start_));
  return ToGrpcStatus(seen);
}

}  // namespace ovq
