#include "server/rpc/chat_call.h"

#include <utility>

#include "server/engine/error_facts.h"
#include "server/engine/validate.h"
#include "server/rpc/convert.h"
#include "server/rpc/session_key.h"

namespace ovq {

ChatCall::ChatCall(ServiceContext& services, grpc::CallbackServerContext* context)
    : StreamCall(services, Method::kChat, context) {
  record_.summary().turns = 0;
}

void ChatCall::Start() {
  KeepUntilDone();
  services_.AddDrainListener(this);
  strand_.Dispatch([this] {
    // Before any message: nobody unknown holds a stream open.
    absl::StatusOr<Caller> caller = services_.auth.Authenticate(*context_);
    if (!caller.ok()) return End(caller.status());
    caller_ = *std::move(caller);
    record_.summary().tenant = caller_.tenant;
    Read();
  });
}

void ChatCall::OnReadDone(bool ok) {
  strand_.Dispatch([this, ok] {
    reading_ = false;
    if (ok) {
      HandleMessage();
    } else {
      HandleHalfClose();
    }
  });
}

void ChatCall::OnCancel() {
  strand_.Dispatch([this] {
    client_gone_ = true;
    End(absl::CancelledError("cancelled by the client"));
  });
}

void ChatCall::OnDone() {
  services_.RemoveDrainListener(this);
  StreamCall::OnDone();
}

void ChatCall::OnDrain() {
  OnStrand([this] {
    draining_ = true;
    if (phase_ == Phase::kIdle || phase_ == Phase::kUnopened) End(services_.CheckServing());
  });
}

void ChatCall::Read() {
  if (reading_ || half_closed_ || phase_ == Phase::kEnding) return;
  reading_ = true;
  StartRead(&in_);
}

void ChatCall::HandleMessage() {
  if (phase_ == Phase::kEnding) return;
  v1::ChatRequest message;
  if (absl::Status status = ParseMessage(in_, message); !status.ok()) return End(status);
  in_.Clear();
  if (phase_ == Phase::kUnopened) {
    if (message.has_open()) return Open(message.open());
    return End(absl::InvalidArgumentError("event: expected open as the first message"));
  }
  switch (message.event_case()) {
    case v1::ChatRequest::kTurn:
      return HandleTurn(message.turn());
    case v1::ChatRequest::kCancel:
      // Without a running turn: the turn ended while this was on its way.
      if (phase_ == Phase::kTurn) stream_->Cancel();
      return Read();
    case v1::ChatRequest::kOpen:
      return End(absl::InvalidArgumentError("open: expected as the first message only"));
    case v1::ChatRequest::EVENT_NOT_SET:
      return End(absl::InvalidArgumentError("event: expected turn or cancel, got none"));
  }
}

void ChatCall::HandleHalfClose() {
  half_closed_ = true;
  if (phase_ == Phase::kIdle) End(absl::OkStatus());
  if (phase_ == Phase::kUnopened) {
    End(absl::InvalidArgumentError("open: expected as the first message, got the stream's end"));
  }
}

void ChatCall::HandleTurn(const v1::ChatTurn& turn) {
  if (phase_ == Phase::kIdle) return BeginTurn(turn);
  if (part_) {
    // Parts may be sent without waiting for each one's acknowledgement; reading goes on when this
    // one's time has come, so a fast sender fills no memory here.
    held_ = turn;
    return;
  }
  End(absl::FailedPreconditionError("turn: another turn is still running"));
}

void ChatCall::Open(const v1::ChatOpen& open) {
  phase_ = Phase::kOpening;
  if (absl::Status status = services_.CheckServing(); !status.ok()) return Opened(status);
  if (!open.has_session_id()) {
    created_ = true;
    ephemeral_ = !open.keep_session();
    if (absl::Status status = StartNewSession(open); !status.ok()) Opened(status);
    return;
  }
  if (absl::Status status = CheckSessionId(open.session_id(), "open."); !status.ok()) {
    return Opened(status);
  }
  if (open.has_max_centroids() || open.has_ttl()) {
    return Opened(
        BadField("open", "max_centroids and ttl only for a new session", "them with session_id"));
  }
  OnBlockingThread([this, id = open.session_id()] {
    absl::StatusOr<SessionInfo> session = services_.engine.GetSession(id, caller_.tenant);
    OnStrand([this, session = std::move(session)] { Opened(session); });
  });
}

absl::Status ChatCall::StartNewSession(const v1::ChatOpen& open) {
  absl::StatusOr<std::string> key = SessionKeyOf(*context_);
  if (!key.ok()) return key.status();
  SessionOptions options = ToSessionOptions(open);
  options.field_prefix = "open.";
  options.tenant = caller_.tenant;
  options.key = *std::move(key);
  options.deadline = record_.deadline();
  services_.engine.CreateSession(
      std::move(options), [self = shared_from_this(), this](absl::StatusOr<SessionInfo> session) {
        OnStrand([this, session = std::move(session)] { Opened(session); });
      });
  return absl::OkStatus();
}

void ChatCall::Opened(absl::StatusOr<SessionInfo> session) {
  if (session.ok()) {
    session_id_ = session->id;
    record_.summary().SetSession(session_id_);
    position_ = session->position;
  }
  if (phase_ == Phase::kEnding) {
    // Cancelled meanwhile: no client has learned the new session's id.
    const absl::Status status = end_status_;
    ephemeral_ = created_;
    phase_ = Phase::kIdle;
    return End(status);
  }
  phase_ = Phase::kIdle;
  if (!session.ok()) return End(session.status());
  if (draining_) return End(services_.CheckServing());
  Fill(*session, *out_.emplace_back().mutable_opened()->mutable_session());
  Pump();
  Read();
}

void ChatCall::End(absl::Status status) {
  if (phase_ == Phase::kEnding) return;
  const bool opening = phase_ == Phase::kOpening;
  phase_ = Phase::kEnding;
  end_status_ = std::move(status);
  if (stream_ != nullptr) stream_->Cancel();
  if (opening) return;  // goes on in Opened
  if (!ephemeral_ || session_id_.empty()) {
    cleaned_up_ = true;
    return Pump();
  }
  OnBlockingThread([this] {
    // NotFound if it expired or another call deleted it, which is as good.
    (void)services_.engine.DeleteSession(session_id_, caller_.tenant);
    OnStrand([this] {
      cleaned_up_ = true;
      Pump();
    });
  });
}

bool ChatCall::Advance() {
  if (cleaned_up_) {
    if (turn_) EndTurn(end_status_);
    EndCall(end_status_);
    return true;
  }
  if (phase_ != Phase::kTurn || !submitted_) return false;
  if (std::optional<StreamEvent> event = stream_->TryPop()) {
    HandleEvent(*event);
    return true;
  }
  if (!stream_->closed()) return false;
  HandleStreamEnd();
  return true;
}

grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* StartChat(
    ServiceContext& services, grpc::CallbackServerContext* context) {
  auto call = std::make_shared<ChatCall>(services, context);
  call->Start();
  return call.get();
}

}  // namespace ovq
