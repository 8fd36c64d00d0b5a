// A gRPC call as what all calls share sees it.
#pragma once

#include <grpcpp/grpcpp.h>

#include <string>
#include <vector>

#include "server/access/call_context.h"
#include "server/calls/service_context.h"

namespace ovq {

class GrpcCallContext final : public CallContext {
 public:
  explicit GrpcCallContext(grpc::CallbackServerContext* context);  // which outlives it

  std::string peer() const override { return context_->peer(); }
  std::vector<std::string> Values(const char* name) const override;
  const char* kind() const override { return "metadata"; }
  SteadyTime deadline() const override { return deadline_; }
  bool cancelled() const override { return context_->IsCancelled(); }

  // Counts the call, logs it and gives its status for the wire. Trailing metadata: `x-request-id`,
  // `traceparent`, `tracestate`, and `retry-after-ms` where the status knows one. Call once, at the
  // end, not on the engine's thread.
  grpc::Status End(CallRecord& record, const absl::Status& status) const;

 private:
  grpc::CallbackServerContext* const context_;
  const SteadyTime deadline_;
};

}  // namespace ovq
