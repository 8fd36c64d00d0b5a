// The Generate call: one request, its events streamed as they come.
#include <memory>
#include <utility>

#include "ovq/v1/inference.pb.h"
#include "server/engine/validate.h"
#include "server/rpc/convert.h"
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
    if (absl::Status status = TakeBytes(memory_, request->Length()); !status.ok()) {
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
    absl::StatusOr<Caller> caller = services_.Admit(*context_);
    if (!caller.ok()) return caller.status();
    v1::GenerateRequest message;
    if (absl::Status status = ParseMessage(bytes, message, memory_); !status.ok()) return status;
    GenerateRequest request;
    record_.summary().tenant = caller->tenant;
    record_.summary().SetSession(message.session_id());
    request.tenant = std::move(caller->tenant);
    request.client = std::move(caller->client);
    request.arrival = record_.arrival();
    request.deadline = record_.deadline();
    if (absl::Status status = Map(message, request); !status.ok()) return status;
    if (absl::Status status = TakeBytes(memory_, StreamBytes(request)); !status.ok()) return status;
    return services_.engine.Submit(std::move(request), stream_);
  }

  absl::Status Map(const v1::GenerateRequest& from, GenerateRequest& to) {
    PromptPlace place;
    if (from.has_session_id()) {
      if (absl::Status status = CheckSessionId(from.session_id(), ""); !status.ok()) return status;
      to.session_id = from.session_id();
      place = PlaceIn(services_.engine, to.session_id, to.tenant);
    }
    to.memory = from.memory();
    if (from.has_max_centroids()) to.slot_cap = static_cast<int32_t>(from.max_centroids());
    return SetGeneration(from, place, services_.engine, to);
  }

  bool Advance() override {
    if (std::optional<StreamEvent> event = stream_->TryPop()) {
      // An event of the engine may hold several of the proto's.
      record_.summary().work.Add(*event);
      if (event->started) Fill(*event->started, *out_.emplace_back().mutable_started());
      if (event->chunk) Fill(*event->chunk, *out_.emplace_back().mutable_chunk());
      if (event->finished) Fill(*event->finished, *out_.emplace_back().mutable_finished());
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
                                                          grpc::CallbackServerContext* context,
                                                          const grpc::ByteBuffer* request) {
  auto call = std::make_shared<GenerateCall>(services, "Generate", context);
  call->Start(request);
  return call.get();
}

}  // namespace ovq
