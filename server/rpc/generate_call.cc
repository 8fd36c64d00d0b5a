// The Generate call: one request, its events streamed as they come.
#include <memory>
#include <utility>

#include "base/status_macros.h"
#include "ovq/v1/inference.pb.h"
#include "server/calls/generation.h"
#include "server/rpc/stream_call.h"

namespace ovq {
namespace {

class GenerateCall final
    : public StreamCall<grpc::ServerWriteReactor<grpc::ByteBuffer>, v1::GenerateResponse> {
 public:
  using StreamCall::StreamCall;

  void Start(const grpc::ByteBuffer* request) {
    KeepUntilDone();
    // What waits to be read has its bytes too.
    if (absl::Status status = ReserveBytes(memory_, request->Length()); !status.ok()) {
      return EndCall(status);
    }
    OnBlockingThread([this, request] {
      if (absl::Status status = Submit(*request); !status.ok()) return EndCall(status);
      Listen(*stream_);
    });
  }

  void OnCancel() override { stream_->Cancel(); }

 private:
  absl::Status Submit(const grpc::ByteBuffer& bytes) {
    ASSIGN_OR_RETURN(Caller caller, services_.Admit(context_));
    v1::GenerateRequest message;
    RETURN_IF_ERROR(ParseMessage(bytes, message, memory_));
    return SubmitGenerate(message, caller, record_, memory_, stream_);
  }

  bool Advance() override {
    if (std::optional<StreamEvent> event = stream_->TryPop()) {
      record_.summary().work.Add(*event);
      ToMessages(
          *event, [this]() -> auto& { return out_.emplace_back(); });
    } else if (stream_->closed()) {
      EndCall(stream_->status());
    } else {
      return false;
    }
    return true;
  }

  const std::shared_ptr<TokenStream> stream_ = std::make_shared<TokenStream>();
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

}  // namespace ovq
