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

class GenerateCall final
    : public StreamCall<grpc::ServerWriteReactor<grpc::ByteBuffer>, v1::GenerateResponse>,
      public TokenSink {
 public:
  using StreamCall::StreamCall;

  void Start(const grpc::ByteBuffer* request) {
    KeepUntilDone();
    // A message that waits to be parsed takes its bytes, too.
    if (absl::Status status = ReserveBytes(memory_, request->Length()); !status.ok()) {
      return EndCall(status);
    }
    OnBlockingThread([this, request] { pump_.Submitted(Submit(*request), weak_from_this()); });
  }

  void OnCancel() override { pump_.Cancel(); }
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
    ASSIGN_OR_RETURN(Caller caller, services_.Admit(context_));
    v1::GenerateRequest message;
    RETURN_IF_ERROR(ParseMessage(bytes, message, memory_));
    return SubmitGenerate(message, caller, record_, memory_, pump_.stream());
  }

  bool Advance() override { return pump_.Advance(); }

  TokenPump pump_{*this, record_.summary().work};
};

}  // namespace

grpc::ServerWriteReactor<grpc::ByteBuffer>* StartGenerate(ServiceContext& services,
                                                          const char* label,
                                                          grpc::CallbackServerContext* context,
                                                          const grpc::ByteBuffer* request) {
  auto call = std::make_shared<GenerateCall>(services, label, context);
  call->Start(request);
  return call.get();
}

}  // namespace ovq::server
