// One unary RPC: parsed and handled off gRPC's threads, answered when its handler says so.
#pragma once

#include <grpcpp/grpcpp.h>

#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "server/rpc/grpc_codec.h"
#include "server/rpc/grpc_context.h"

namespace ovq {

// What a handler gets beside the message.
struct UnaryInfo {
  ServiceContext& services;
  const grpc::CallbackServerContext& context;  // until `done` is called
  std::string tenant;
  SteadyTime arrival;
  SteadyTime deadline;
  std::shared_ptr<CancelSignal> cancel;  // the client's
  CallSummary* summary;                  // for the log; until `done` is called
};

template <class Response>
using UnaryDone = std::function<void(absl::StatusOr<Response>)>;  // once, from any thread

// Handlers run on a thread that may block.
template <class Request, class Response>
using UnaryHandler =
    std::function<void(const UnaryInfo&, const Request&, const UnaryDone<Response>&)>;

template <class Request, class Response>
class UnaryCall final : public grpc::ServerUnaryReactor {
 public:
  UnaryCall(ServiceContext& services, Method method, grpc::CallbackServerContext* context,
            grpc::ByteBuffer* response)
      : services_(services),
        context_(context),
        record_(services, method, context),
        response_(response) {}

  void Start(const grpc::ByteBuffer* request, Access access,
             UnaryHandler<Request, Response> handler) {
    services_.blocking.Run([this, request, access, handler = std::move(handler)] {
      absl::StatusOr<Caller> caller = services_.auth.Authenticate(*context_, access);
      if (!caller.ok()) return End(caller.status());
      Request message;
      if (absl::Status status = ParseMessage(*request, message); !status.ok()) return End(status);
      record_.summary().tenant = caller->tenant;
      const UnaryInfo info{.services = services_,
                           .context = *context_,
                           .tenant = std::move(caller->tenant),
                           .arrival = record_.arrival(),
                           .deadline = record_.deadline(),
                           .cancel = cancel_,
                           .summary = &record_.summary()};
      handler(info, message, [this](absl::StatusOr<Response> answer) { Reply(std::move(answer)); });
    });
  }

  void OnCancel() override { cancel_->Cancel(); }
  void OnDone() override { delete this; }

 private:
  // The engine's thread may bring the answer: it is serialized on another one.
  void Reply(absl::StatusOr<Response> answer) {
    services_.writers.Run([this, answer = std::move(answer)] {
      if (answer.ok()) *response_ = SerializeMessage(*answer);
      if constexpr (requires { answer->session_id(); }) {
        if (answer.ok()) record_.summary().SetSession(answer->session_id());
      }
      End(answer.status());
    });
  }
  void End(const absl::Status& status) { Finish(record_.End(status)); }

  ServiceContext& services_;
  grpc::CallbackServerContext* const context_;
  CallRecord record_;
  grpc::ByteBuffer* const response_;
  const std::shared_ptr<CancelSignal> cancel_ = std::make_shared<CancelSignal>();
};

// A generated service with the means to say its unary methods in a line each.
template <class Generated>
class UnaryService : public Generated {
 protected:
  using Context = grpc::CallbackServerContext;
  using Bytes = grpc::ByteBuffer;
  using Unary = grpc::ServerUnaryReactor;

  UnaryService(ServiceContext& services, Access access) : services_(services), access_(access) {}

  template <class Request, class Response>
  Unary* Start(Method method, Context* context, const Bytes* request, Bytes* response,
               UnaryHandler<Request, Response> handler) {
    auto* call = new UnaryCall<Request, Response>(services_, method, context, response);
    call->Start(request, access_, std::move(handler));
    return call;
  }
  template <class Request, class Response>
  Unary* Start(Method method, Context* context, const Bytes* request, Bytes* response,
               void (*handler)(const UnaryInfo&, const Request&, const UnaryDone<Response>&)) {
    return Start(method, context, request, response, UnaryHandler<Request, Response>(handler));
  }
  // With a handler that answers at once.
  template <class Request, class Response>
  Unary* Start(Method method, Context* context, const Bytes* request, Bytes* response,
               absl::StatusOr<Response> (*handler)(const UnaryInfo&, const Request&)) {
    return Start(
        method, context, request, response,
        UnaryHandler<Request, Response>([handler](const UnaryInfo& info, const Request& message,
                                                  auto done) { done(handler(info, message)); }));
  }

  ServiceContext& services_;

 private:
  const Access access_;
};

}  // namespace ovq
