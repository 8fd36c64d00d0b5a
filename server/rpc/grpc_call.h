// A gRPC call as a CallContext, with its record.
#pragma once

#include <grpcpp/grpcpp.h>

#include <string>
#include <vector>

#include "server/access/call_context.h"
#include "server/calls/service_context.h"

namespace ovq::server {

class GrpcCall final : public CallContext {
 public:
  // label: the RPC's (server/calls/rpc_labels.h). The context outlives this object.
  GrpcCall(ServiceContext& services, const char* label, grpc::CallbackServerContext* context);

  std::string peer() const override { return context_->peer(); }
  std::vector<std::string> Values(const char* name) const override;
  const char* kind() const override { return "metadata"; }
  SteadyTime deadline() const override { return deadline_; }
  bool cancelled() const override { return context_->IsCancelled(); }

  CallRecord& record() { return record_; }
  // Counts and logs the call, sets its trailing metadata (`x-request-id`, `traceparent`,
  // `tracestate`, and `retry-after-ms` if the status has one) and returns its status for the wire.
  // Call once, at the end, not on the engine's thread.
  grpc::Status End(const absl::Status& status);

 private:
  grpc::CallbackServerContext* const context_;
  const SteadyTime deadline_;
  CallRecord record_;
};

}  // namespace ovq::server
