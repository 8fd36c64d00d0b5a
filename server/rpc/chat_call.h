// The Chat call: one bidirectional stream is one live conversation.
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
// Reactions and engine callbacks only queue work on the strand; what may block (tokenizing, waiting
// for the engine) runs on the blocking threads and comes back to the strand.
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

  // --- all below: on the strand, unless said otherwise ---
  void Read();
  void HandleMessage();
  void HandleHalfClose();
  void HandleTurn(const v1::ChatTurn& turn);

  void Open(const v1::ChatOpen& open);
  void OpenNew(const v1::ChatOpen& open);
  void Opened(absl::StatusOr<SessionInfo> session);

  void BeginTurn(const v1::ChatTurn& turn);
  // On a blocking thread.
  // charged: as a request of the tenant, with the call.
  absl::Status SubmitTurn(const v1::ChatTurn& turn, const std::shared_ptr<TokenStream>& stream,
                          bool charged);
  void TurnSubmitted(const absl::Status& status);
  void HandleFinished(const Finished& finished);
  void EndTurn(const absl::Status& status);  // for the log

  void End(absl::Status status);
  bool Advance() override;

  Phase phase_ = Phase::kUnopened;
  bool half_closed_ = false;
  bool draining_ = false;
  bool opening_charged_ = true;  // the call was, and its first turn goes with it
  absl::Status end_status_;

  grpc::ByteBuffer in_;
  bool reading_ = false;
  bool cleaned_up_ = false;  // phase kEnding: nothing is left to do but to finish

  Caller caller_;
  std::string session_id_;
  bool created_ = false;    // by this stream
  bool ephemeral_ = false;  // the session ends with the stream
  int64_t position_ = 0;
  v1::ChatTurn turn_defaults_;  // the last turn without its prompt, and what only earlier ones said

  std::unique_ptr<TokenPump> pump_;  // of the running turn
  // Its Finished or PartAbsorbed. Sent when the engine has let go of the session: a client may
  // answer it at once with the next turn.
  std::optional<v1::ChatResponse> turn_result_;
  std::optional<v1::ChatTurn> queued_turn_;  // came while a part was being absorbed
  std::unique_ptr<ByteHold> turn_memory_, queued_turn_memory_;
  std::optional<TurnRecord>
      turn_;  // from its first part to its Finished, or the call's end
};

}  // namespace ovq
