#include "server/rpc/inference_service_generate.h"

#include <memory>
#include <utility>

#include "ovq/v1/inference.pb.h"
#include "server/rpc/convert.h"
#include "server/rpc/grpc_codec.h"

namespace ovq {
namespace {

// Tokens wait in the TokenStream until the client takes the message before: a slow client fills
// its own stream, and the engine then parks that request alone.
class GenerateCall final : public grpc::ServerWriteReactor<grpc::ByteBuffer>,
                           public std::enable_shared_from_this<GenerateCall> {
 public:
  GenerateCall(ServiceContext& services, grpc::CallbackServerContext* context,
               const grpc::ByteBuffer* request)
      : services_(services),
        context_(context),
        request_(request),
        record_(services, Method::kGenerate, context),
        strand_(services.writers) {}

  void Start() {
    self_ = shared_from_this();
    services_.blocking.Run([self = self_] { self->Begin(); });
  }

  void OnWriteDone(bool ok) override {
    strand_.Dispatch([this, ok] {
      writing_ = false;
      if (!ok) client_gone_ = true;
      Pump();
    });
  }
  void OnCancel() override { stream_->Cancel(); }
  void OnDone() override { self_.reset(); }

 private:
  void Begin() {
    const absl::Status status = Submit();
    if (!status.ok()) return Finish(record_.End(status));
    // The listener runs on the engine's thread: all it does is to wake a writer.
    stream_->SetListener([weak = weak_from_this()] {
      std::shared_ptr<GenerateCall> self = weak.lock();
      if (self != nullptr) self->strand_.Post(self, [self] { self->Pump(); });
    });
  }

  absl::Status Submit() {
    absl::StatusOr<Caller> caller = services_.auth.Authenticate(*context_);
    if (!caller.ok()) return caller.status();
    v1::GenerateRequest message;
    if (absl::Status status = ParseMessage(*request_, message); !status.ok()) return status;
    GenerateRequest request;
    record_.summary().tenant = caller->tenant;
    record_.summary().SetSession(message.session_id());
    request.tenant = std::move(caller->tenant);
    request.arrival = record_.arrival();
    request.deadline = record_.deadline();
    if (absl::Status status = Convert(message, request); !status.ok()) return status;
    return services_.engine.Submit(std::move(request), stream_);
  }

  absl::Status Convert(const v1::GenerateRequest& from, GenerateRequest& to) {
    const RequestLimits limits = RequestLimits::Of(services_.engine);
    if (from.has_session_id() && from.session_id().empty()) {
      return absl::InvalidArgumentError("session_id: expected a session's id, got none");
    }
    to.session_id = from.session_id();
    if (from.has_max_centroids()) {
      if (from.has_session_id()) {
        return absl::InvalidArgumentError("max_centroids: expected none with session_id");
      }
      absl::StatusOr<int32_t> cap = ToSlotCap(from.max_centroids(), "", limits);
      if (!cap.ok()) return cap.status();
      to.slot_cap = *cap;
    }
    for (const absl::Status& status :
         {SetSampling(from.sampling(), "", limits, to), SetStop(from.stop(), "", limits, to),
          SetOutput(from.output(), "", limits, to)}) {
      if (!status.ok()) return status;
    }
    bool at_start = true;
    if (from.has_session_id()) {
      absl::StatusOr<SessionInfo> session = services_.engine.GetSession(to.session_id, to.tenant);
      if (!session.ok()) return session.status();
      at_start = session->position == 0;
    }
    absl::StatusOr<std::vector<int32_t>> prompt = PromptTokens(from.prompt(), "", at_start, limits);
    if (!prompt.ok()) return prompt.status();
    to.prompt = *std::move(prompt);
    return at_start ? CheckNotEmpty(to.prompt, "") : absl::OkStatus();
  }

  // Strand: the next message to the client, or the end.
  void Pump() {
    while (!writing_ && !finished_) {
      if (!messages_.empty()) {
        WriteNext();
      } else if (std::optional<StreamEvent> event = stream_->TryPop()) {
        Enqueue(*event);
      } else if (stream_->closed()) {
        finished_ = true;
        Finish(record_.End(stream_->status()));
      } else {
        return;
      }
    }
  }

  // An event of the engine may hold several of the proto's.
  void Enqueue(const StreamEvent& event) {
    record_.summary().work.Add(event);
    if (client_gone_) return;
    if (event.started) Fill(*event.started, *messages_.emplace_back().mutable_started());
    if (event.chunk) Fill(*event.chunk, *messages_.emplace_back().mutable_chunk());
    if (event.finished) Fill(*event.finished, *messages_.emplace_back().mutable_finished());
  }

  void WriteNext() {
    writing_ = true;
    bytes_ = SerializeMessage(messages_.front());
    messages_.pop_front();
    StartWrite(&bytes_);
  }

  ServiceContext& services_;
  grpc::CallbackServerContext* const context_;
  const grpc::ByteBuffer* const request_;
  CallRecord record_;
  const std::shared_ptr<TokenStream> stream_ = std::make_shared<TokenStream>();
  std::shared_ptr<GenerateCall> self_;  // until OnDone

  Strand strand_;
  // On the strand.
  std::deque<v1::GenerateResponse> messages_;
  grpc::ByteBuffer bytes_;  // the message being written
  bool writing_ = false;
  bool client_gone_ = false;
  bool finished_ = false;
};

}  // namespace

grpc::ServerWriteReactor<grpc::ByteBuffer>* StartGenerate(ServiceContext& services,
                                                          grpc::CallbackServerContext* context,
                                                          const grpc::ByteBuffer* request) {
  auto call = std::make_shared<GenerateCall>(services, context, request);
  call->Start();
  return call.get();
}

}  // namespace ovq
