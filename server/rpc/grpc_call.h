// A gRPC call as a CallContext, with its record.
#pragma once

#include <grpcpp/grpcpp.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "server/access/call_context.h"
#include "server/calls/service_context.h"
#include "server/engine/common/error_facts.h"
#include "server/rpc/grpc_codec.h"

namespace ovq::server {

class GrpcCall final : public CallContext {
 public:
  // label: the RPC's (server/calls/rpc_labels.h). The context outlives this object.
  GrpcCall(ServiceContext& services, const char* label, grpc::CallbackServerContext* context)
      : context_(context),
        peer_(context->peer()),
        deadline_(Clock().ToSteady(absl::FromChrono(context->deadline()))),
        record_(services, label, *this) {}

  std::string peer() const override { return peer_; }
  std::vector<std::string> Values(const char* name) const override {
    const auto [begin, end] = context_->client_metadata().equal_range(name);
    std::vector<std::string> values;
    for (auto entry = begin; entry != end; ++entry) {
      values.emplace_back(entry->second.data(), entry->second.size());
    }
    return values;
  }
  const char* kind() const override { return "metadata"; }
  SteadyTime deadline() const override { return deadline_; }
  bool cancelled() const override { return context_->IsCancelled(); }

  CallRecord& record() { return record_; }
  // Takes memory for the call's message while it waits to be parsed. gRPC keeps its bytes to the
  // end of the call, but End frees them.
  absl::Status HoldMessage(const grpc::ByteBuffer& message) {
    message_ = &message;
    return ReserveBytes(record_.memory(), message.Length());
  }
  // Counts and logs the call, sets its trailing metadata (`x-request-id`, `traceparent`,
  // `tracestate`, and `retry-after-ms` if the status has one) and returns its status for the wire.
  // answer_bytes: of a message that goes with the status. Call once, at the end, not on the
  // engine's thread.
  grpc::Status End(const absl::Status& status, size_t answer_bytes = 0) {
    const absl::Status seen = record_.Seen(status);
    if (const std::optional<absl::Duration> wait = engine::GetErrorFacts(seen).retry_after) {
      context_->AddTrailingMetadata("retry-after-ms",
                                    absl::StrCat(absl::ToInt64Milliseconds(*wait)));
    }
    for (const auto& [name, value] : record_.AnswerHeaders()) {
      context_->AddTrailingMetadata(name, value);
    }
    record_.services().metrics.CallFinished(record_.method(), seen.code(), record_.age());
    if (message_ != nullptr) const_cast<grpc::ByteBuffer*>(message_)->Clear();
    record_.End(seen, answer_bytes);
    return ToGrpcStatus(seen);
  }

 private:
  grpc::CallbackServerContext* const context_;
  const std::string peer_;  // the library forgets it where the server ends the call's connection
  const SteadyTime deadline_;
  CallRecord record_;
  const grpc::ByteBuffer* message_ = nullptr;
};

}  // namespace ovq::server
