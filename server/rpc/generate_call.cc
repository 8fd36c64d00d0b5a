// The Generate call: streams the events of one request.
#include <memory>
#include <utility>

#include "base/status_macros.h"
#include "ovq/v1/inference.pb.h"
#include "server/calls/generation.h"
#include "server/calls/token_pump.h"
#include "server/rpc/stream_call.h"

namespace ovq::server {
namespace {

class GenerateCall final : public StreamCall<WriteReactor, v1::GenerateResponse>, public TokenSink {
 public:
  using StreamCall::StreamCall;

  void Start(const grpc::ByteBuffer* request) {
    KeepUntilDone();
    if (absl::Status status = call_.HoldMessage(*request); !status.ok()) return EndCall(status);
    if (absl::Status status = Admit(); !status.ok()) return EndCall(status);
    BeginOnBlockingThread(request->Length(), [this, request](const absl::Status& status) {
      pump_.Submitted(status.ok() ? Submit(*request) : status, weak_from_this());
    });
  }

  void OnCancel() override {
    StreamCall::OnCancel();
    pump_.Cancel();
  }
  void OnEvent(const engine::StreamEvent& event) override {
    ToMessages(
        event, [this]() -> auto& { return out_.emplace_back(); });
  }
  void OnStreamEnd(const absl::Status& status) override { EndCall(status); }
  void Wake() override {
    OnStrand([this] { Pump(); });
  }

 private:
  absl::Status Submit(const grpc::ByteBuffer& bytes) {
    v1::GenerateRequest message;
    RETURN_IF_ERROR(ParseMessage(bytes, message, record_.memory()));
    return SubmitGenerate(message, record_, pump_.stream());
  }

  bool Advance() override { return pump_.Advance(); }

  TokenPump pump_{*this, record_.summary().work};
};

}  // namespace

WriteReactor* StartGenerate(ServiceContext& services, const char* label,
                            grpc::CallbackServerContext* context, const grpc::ByteBuffer* request) {
  return StartCall<GenerateCall>(services, label, context, request);
}

}  // namespace ovq::server
