// A gRPC call as a CallContext.
#pragma once

#include <grpcpp/grpcpp.h>

#include <string>
#include <vector>

#include "server/access/call_context.h"
#include "server/calls/service_context.h"

namespace ovq::server {

class GrpcCallContext final : public CallContext {
 public:
  explicit GrpcCallContext(grpc::CallbackServerContext* context);  // outlives this object

  std::string peer() const override { return context_->peer(); }
  std::vector<std::string> Values(const char* name) const override;
  const char* kind() const override { return "metadata"; }
  SteadyTime deadline() const override { return deadline_; }
  bool cancelled() const override { return context_->IsCancelled(); }

  // Counts and logs the call, sets its trailing metadata (`x-request-id`, `traceparent`,
  // `tracestate`, and `retry-after-ms` if the status has one) and returns its status for the wire.
  // Call once, at the end, not on the engine's thread.
  grpc::Status End(CallRecord& record, const absl::Status& status) const;

 private:
  grpc::CallbackServerContext* const context_;
  const SteadyTime deadline_;
};

}  // namespace ovq::server
