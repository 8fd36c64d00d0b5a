// One unary RPC: parsed and handled off gRPC's threads, answered when its handler says so.
#pragma once

#include <grpcpp/grpcpp.h>

#include <atomic>
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
  std::string tenant;
  absl::Time arrival;
  absl::Time deadline;
  std::shared_ptr<const std::atomic<bool>> cancelled;
  CallSummary* summary;  // for the log; until `done` is called
};

template <class Response>
using UnaryDone = std::function<void(absl::StatusOr<Response>)>;  // once, from any thread

// Runs on a thread that may block.
template <class Request, class Response>
using UnaryHandler = std::function<void(const UnaryInfo&, const Request&, UnaryDone<Response>)>;

template <class Request, class Response, Access kAccess = Access::kAny>
class UnaryCall final : public grpc::ServerUnaryReactor {
 public:
  UnaryCall(ServiceContext& services, Method method, grpc::CallbackServerContext* context,
            const grpc::ByteBuffer* request, grpc::ByteBuffer* response,
            UnaryHandler<Request, Response> handler)
      : services_(services),
        context_(context),
        record_(services, method, context),
        response_(response) {
    services_.blocking.Run([this, request, handler = std::move(handler)] {
      absl::StatusOr<Caller> caller = services_.auth.Authenticate(*context_, kAccess);
      if (!caller.ok()) return End(caller.status());
      Request message;
      if (absl::Status status = ParseMessage(*request, message); !status.ok()) return End(status);
      record_.summary().tenant = caller->tenant;
      const UnaryInfo info{std::move(caller->tenant), record_.arrival(), record_.deadline(),
                           cancelled_, &record_.summary()};
      handler(info, message, [this](absl::StatusOr<Response> answer) { Reply(std::move(answer)); });
    });
  }

  void OnCancel() override { *cancelled_ = true; }
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
  const std::shared_ptr<std::atomic<bool>> cancelled_ = std::make_shared<std::atomic<bool>>(false);
};

}  // namespace ovq
