// The Chat call: a bidirectional stream that is one conversation.
#pragma once

#include <grpcpp/grpcpp.h>

#include <memory>
#include <optional>
#include <string>

#include "ovq/v1/inference.pb.h"
#include "server/calls/service_context.h"
#include "server/calls/token_pump.h"
#include "server/rpc/stream_call.h"

namespace ovq {

// Phases: kUnopened -> kOpening -> kIdle <-> kTurn, and from any of them kEnding.
//
// Reactions of gRPC and callbacks of the engine only post work to the strand. Work that may block
// (tokenizing, waiting for the engine) runs on the blocking threads and posts its result back.
class ChatCall final
    : public StreamCall<grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>,
                        v1::ChatResponse>,
      public TokenSink {
 public:
  ChatCall(ServiceContext& services, const char* label, grpc::CallbackServerContext* context);
  void Start();

  void OnReadDone(bool ok) override;
  void OnCancel() override;
  void OnDone() override;

  void OnEvent(const StreamEvent& event) override;
  void OnStreamEnd(const absl::Status& status) override;
  void Wake() override;  // any thread

 private:
  enum class Phase : uint8_t { kUnopened, kOpening, kIdle, kTurn, kEnding };

  // --- on the strand, unless said otherwise ---
  void Read();
  void HandleMessage();
  void HandleHalfClose();
  void HandleTurn(const v1::ChatTurn& turn);

  void Open(const v1::ChatOpen& open);
  void OpenNew(const v1::ChatOpen& open);
  void Opened(absl::StatusOr<SessionInfo> session);

  void BeginTurn(const v1::ChatTurn& turn);
  // On a blocking thread. charged: the tenant was charged for this turn with the call.
  absl::Status SubmitTurn(const v1::ChatTurn& turn, const std::shared_ptr<TokenStream>& stream,
                          bool charged);
  void TurnSubmitted(const absl::Status& status);
  void HandleFinished(const Finished& finished);
  void EndTurn(const absl::Status& status);  // logs it

  void End(absl::Status status);
  bool Advance() override;

  Phase phase_ = Phase::kUnopened;
  bool half_closed_ = false;
  bool draining_ = false;
  bool opening_charged_ = true;  // the call was charged, which covers its first turn
  absl::Status end_status_;

  grpc::ByteBuffer in_;
  bool reading_ = false;
  bool cleaned_up_ = false;  // phase kEnding: all that is left is to finish

  Caller caller_;
  std::string session_id_;
  bool created_ = false;    // the session, by this stream
  bool ephemeral_ = false;  // the session ends with the stream
  int64_t position_ = 0;
  v1::ChatTurn turn_defaults_;  // settings so far; a turn changes those that it has

  std::unique_ptr<TokenPump> pump_;  // of the running turn
  // The running turn's Finished or PartAbsorbed. Sent once the engine has released the session, as
  // the client may answer it at once with the next turn.
  std::optional<v1::ChatResponse> turn_result_;
  std::optional<v1::ChatTurn> queued_turn_;  // came while a part was being prefilled
  std::unique_ptr<ByteHold> turn_memory_, queued_turn_memory_;
  std::optional<TurnRecord> turn_;  // from its first part to its Finished, or the call's end
};

}  // namespace ovq
