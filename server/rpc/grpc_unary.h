// The methods of a service: a unary one is parsed and handled off gRPC's threads, and answered when
// its handler says so.
#pragma once

#include <google/protobuf/descriptor.h>
#include <grpcpp/grpcpp.h>
#include <grpcpp/impl/codegen/server_callback_handlers.h>

#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "server/calls/unary.h"
#include "server/engine/error_facts.h"
#include "server/rpc/grpc_call.h"
#include "server/rpc/grpc_codec.h"

namespace ovq {

template <class Request, class Response>
class UnaryCall final : public grpc::ServerUnaryReactor {
 public:
  UnaryCall(ServiceContext& services, const char* method, grpc::CallbackServerContext* context,
            grpc::ByteBuffer* response)
      : services_(services),
        context_(context),
        record_(services, method, context_),
        memory_(services.Memory(context_)),
        response_(response) {}

  void Start(const grpc::ByteBuffer* request, Access access, Lane lane,
             UnaryHandler<Request, Response> handler) {
    queue_ = access == Access::kAdmin ? &services_.admin
             : lane == Lane::kQuick   ? &services_.quick
                                      : &services_.blocking;
    // What waits to be read has its bytes too.
    if (absl::Status status = ReserveBytes(memory_, request->Length()); !status.ok()) {
      return End(status);
    }
    queue_->Run(context_.peer(), [this, request, access, lane, handler = std::move(handler)] {
      absl::StatusOr<Caller> caller = services_.Admit(context_, access);
      if (!caller.ok()) return End(caller.status());
      if (lane == Lane::kQuick && request->Length() > kMaxQuickBytes) {
        return End(BadField(Request::descriptor()->full_name(),
                            absl::StrCat("at most ", kMaxQuickBytes, " bytes"), request->Length()));
      }
      Request message;
      if (absl::Status status = ParseMessage(*request, message, memory_); !status.ok())
        return End(status);
      record_.summary().tenant = caller->tenant;
      const UnaryInfo info{
          services_, context_, record_, std::move(caller->tenant), std::move(caller->client),
          cancel_,   memory_};
      handler(info, message, [this](absl::StatusOr<Response> answer) { Reply(std::move(answer)); });
    });
  }

  void OnCancel() override { cancel_->Cancel(); }
  void OnDone() override { delete this; }

 private:
  // The engine's thread may bring the answer: it is serialized on another one.
  void Reply(absl::StatusOr<Response> answer) {
    queue_->Run(context_.peer(), [this, answer = std::move(answer)] {
      if (answer.ok()) *response_ = SerializeMessage(*answer);
      if constexpr (requires { answer->session_id(); }) {
        if (answer.ok()) record_.summary().SetSession(answer->session_id());
      }
      End(answer.status());
    });
  }
  void End(const absl::Status& status) { Finish(context_.End(record_, status)); }

  ServiceContext& services_;
  const GrpcCallContext context_;
  CallRecord record_;
  ByteHold memory_;
  grpc::ByteBuffer* const response_;
  WorkQueue* queue_ = nullptr;
  const std::shared_ptr<CancelSignal> cancel_ = std::make_shared<CancelSignal>();
};

// A service of ovq.v1 whose methods take and give bytes: what the generated WithRawCallbackMethod_*
// do with an overridden function for each method, in a line for each. `method` is the label of
// metrics; AdminService's have "Admin" before the name.
template <class Api>
class RawService final : public Api::Service {
 public:
  using Context = grpc::CallbackServerContext;
  using Bytes = grpc::ByteBuffer;

  RawService(ServiceContext& services, Access access) : services_(services), access_(access) {}

  template <class Request, class Response>
  void Unary(const char* method, UnaryHandler<Request, Response> handler, Lane lane = Lane::kWork) {
    using Handler = grpc::internal::CallbackUnaryHandler<Bytes, Bytes>;
    SetHandler(method, new Handler([this, method, lane, handler = std::move(handler)](
                                       Context* context, const Bytes* request, Bytes* response) {
                 auto* call =
                     new UnaryCall<Request, Response>(services_, method, context, response);
                 call->Start(request, access_, lane, handler);
                 return call;
               }));
  }
  // With a handler that answers at once.
  template <class Request, class Response>
  void Unary(const char* method,
             absl::StatusOr<Response> (*handler)(const UnaryInfo&, const Request&),
             Lane lane = Lane::kWork) {
    Unary<Request, Response>(
        method,
        [handler](const UnaryInfo& info, const Request& message, const auto& done) {
          done(handler(info, message));
        },
        lane);
  }
  // With one of gRPC's handlers for bytes, which it takes.
  void SetHandler(const char* method, grpc::internal::MethodHandler* handler) {
    const auto* service = google::protobuf::DescriptorPool::generated_pool()->FindServiceByName(
        Api::service_full_name());
    const std::string name(absl::StripPrefix(method, "Admin"));
    this->MarkMethodRawCallback(service->FindMethodByName(name)->index(), handler);
  }

 private:
  ServiceContext& services_;
  const Access access_;
};

}  // namespace ovq
