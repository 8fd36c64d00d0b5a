// Registers the methods of a service. Unary calls are parsed and handled on threads of the
// ServiceContext, and answered when their handler calls `done`.
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
#include "server/calls/handlers.h"
#include "server/calls/rpc_labels.h"
#include "server/engine/common/error_facts.h"
#include "server/rpc/grpc_call.h"
#include "server/rpc/grpc_codec.h"

namespace ovq::server {

template <class Request, class Response>
class UnaryCall final : public grpc::ServerUnaryReactor {
 public:
  UnaryCall(ServiceContext& services, const char* label, grpc::CallbackServerContext* context,
            grpc::ByteBuffer* response)
      : services_(services), call_(services, label, context), response_(response) {}

  void Start(const grpc::ByteBuffer* request, Access access, Lane lane,
             UnaryHandler<Request, Response> handler) {
    queue_ = access == Access::kAdmin ? &services_.admin
             : lane == Lane::kQuick   ? &services_.quick
                                      : &services_.blocking;
    if (absl::Status status = call_.HoldMessage(*request); !status.ok()) return End(status);
    if (absl::Status status = call_.record().Admit(access); !status.ok()) return End(status);
    auto work = [this, request, lane, handler = std::move(handler)](absl::Status status) {
      if (!status.ok()) return End(status);
      CallRecord& record = call_.record();
      if (lane == Lane::kQuick && request->Length() > kMaxQuickBytes) {
        return End(engine::BadField(Request::descriptor()->full_name(),
                                    absl::StrCat("at most ", kMaxQuickBytes, " bytes"),
                                    request->Length()));
      }
      Request message;
      status = ParseMessage(*request, message, record.memory());
      if (!status.ok()) return End(status);
      handler(record, message,
              [this](absl::StatusOr<Response> answer) { Reply(std::move(answer)); });
    };
    CallRecord& record = call_.record();
    if (access == Access::kAdmin) {
      return queue_->Run(record.client(), [work = std::move(work)] { work(absl::OkStatus()); });
    }
    record.Begin(*queue_, request->Length(), std::move(work));
  }

  void OnCancel() override { call_.record().cancel()->Cancel(); }
  void OnDone() override { delete this; }

 private:
  // Serializes the answer on a thread of the queue: `done` may be called on the engine's thread.
  void Reply(absl::StatusOr<Response> answer) {
    queue_->Run(call_.record().client(), [this, answer = std::move(answer)] {
      if (answer.ok()) *response_ = SerializeMessage(*answer);
      if constexpr (requires { answer->session_id(); }) {
        if (answer.ok()) call_.record().summary().SetSession(answer->session_id());
      }
      End(answer.status());
    });
  }
  void End(const absl::Status& status) { Finish(call_.End(status, response_->Length())); }

  ServiceContext& services_;
  GrpcCall call_;
  grpc::ByteBuffer* const response_;
  WorkQueue* queue_ = nullptr;
};

// A service of ovq.v1 whose methods take and give bytes, as the generated WithRawCallbackMethod_*
// classes do with an overridden function for each. A method is registered by its name in the proto,
// from which its label follows (server/calls/rpc_labels.h).
template <class Api>
class RawService final : public Api::Service {
 public:
  using Context = grpc::CallbackServerContext;
  using Bytes = grpc::ByteBuffer;

  RawService(ServiceContext& services, Access access) : services_(services), access_(access) {}

  template <class Request, class Response>
  void Unary(const char* method, UnaryHandler<Request, Response> handler, Lane lane = Lane::kWork) {
    using Handler = grpc::internal::CallbackUnaryHandler<Bytes, Bytes>;
    SetHandler(method,
               new Handler([this, label = Label(method), lane, handler = std::move(handler)](
                               Context* context, const Bytes* request, Bytes* response) {
                 auto* call = new UnaryCall<Request, Response>(services_, label, context, response);
                 call->Start(request, access_, lane, handler);
                 return call;
               }));
  }
  template <class Request, class Response>
  void Unary(const char* method,
             void (*handler)(CallRecord&, const Request&,
                             const std::function<void(absl::StatusOr<Response>)>&),
             Lane lane = Lane::kWork) {
    Unary(method, UnaryHandler<Request, Response>(handler), lane);
  }
  // For a handler that answers at once.
  template <class Request, class Response>
  void Unary(const char* method, absl::StatusOr<Response> (*handler)(CallRecord&, const Request&),
             Lane lane = Lane::kWork) {
    Unary<Request, Response>(
        method,
        [handler](CallRecord& call, const Request& message, const auto& done) {
          done(handler(call, message));
        },
        lane);
  }
  // Calls that stream, of gRPC's handler for their kind: start(services, label, context, ...) gives
  // the reactor, which ends by itself.
  template <template <class, class> class Handler, class Start>
  void Stream(const char* method, Start start) {
    SetHandler(method, new Handler<Bytes, Bytes>(
                           [this, label = Label(method), start](Context* context, auto... more) {
                             return start(services_, label, context, more...);
                           }));
  }

 private:
  static const char* Label(const char* method) {
    return RpcLabel(Api::service_full_name(), method);
  }
  // Takes ownership of the handler.
  void SetHandler(const char* method, grpc::internal::MethodHandler* handler) {
    const auto* service = google::protobuf::DescriptorPool::generated_pool()->FindServiceByName(
        Api::service_full_name());
    this->MarkMethodRawCallback(service->FindMethodByName(method)->index(), handler);
  }

  ServiceContext& services_;
  const Access access_;
};

}  // namespace ovq::server
