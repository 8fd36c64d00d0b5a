// The Chat call: a bidirectional stream that is one conversation.
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "base/status_macros.h"
#include "ovq/v1/inference.pb.h"
#include "server/calls/convert.h"
#include "server/calls/generation.h"
#include "server/calls/token_pump.h"
#include "server/engine/common/error_facts.h"
#include "server/engine/common/validate.h"
#include "server/rpc/stream_call.h"

namespace ovq::server {
namespace {

// Phases: kUnopened -> kOpening -> kIdle <-> kTurn, and from any of them kEnding.
//
// Reactions of gRPC and callbacks of the engine only post work to the strand. Work that may block
// (tokenizing, waiting for the engine) runs on the blocking threads and posts its result back.
class ChatCall final : public StreamCall<BidiReactor, v1::ChatResponse>, public TokenSink {
 public:
  ChatCall(ServiceContext& services, const char* label, grpc::CallbackServerContext* context)
      : StreamCall(services, label, context) {
    record_.summary().turns = 0;
  }

  void Start() {
    KeepUntilDone();
    // Checked before any message, so that unknown callers hold no stream open.
    absl::Status admitted = Admit();
    services_.OnDrain(this, [this] {
      OnStrand([this] {
        draining_ = true;
        if (phase_ == Phase::kIdle || phase_ == Phase::kUnopened) End(services_.CheckServing());
      });
    });
    // A drain that had begun does not tell this stream, which may never send a message.
    if (admitted.ok()) admitted = services_.AdmitWork();
    strand_.Dispatch(
        [this, admitted = std::move(admitted)] { admitted.ok() ? Read() : End(admitted); });
  }

  void OnReadDone(bool ok) override {
    strand_.Dispatch([this, ok] {
      reading_ = false;
      if (ok) {
        HandleMessage();
      } else {
        HandleHalfClose();
      }
    });
  }

  void OnCancel() override {
    StreamCall::OnCancel();
    strand_.Dispatch([this] {
      client_gone_ = true;
      End(absl::CancelledError("cancelled by the client"));
    });
  }

  void OnDone() override {
    services_.OnDrain(this, nullptr);
    StreamCall::OnDone();
  }

  void OnEvent(const engine::StreamEvent& event) override {
    if (event.started && !turn_defaults_.more())
      Fill(*event.started, *out_.emplace_back().mutable_started());
    if (event.chunk) Fill(*event.chunk, *out_.emplace_back().mutable_chunk());
    if (event.finished) HandleFinished(*event.finished);
  }

  void OnStreamEnd(const absl::Status& status) override {
    // After a cancelled turn the conversation goes on. One that had not begun has no Finished yet.
    const bool cancelled = absl::IsCancelled(status) && turn_cancelled_;
    if (cancelled && !turn_result_) {
      engine::Finished finished = {.reason = engine::FinishReason::kCancelled};
      finished.usage.position = position_;
      HandleFinished(finished);
    }
    if (!status.ok() && !(absl::IsCancelled(status) && turn_result_)) return End(status);
    phase_ = Phase::kIdle;
    pump_ = nullptr;
    turn_memory_ = nullptr;  // before the client has the result, and may send the next turn
    if (turn_result_ && turn_result_->has_finished()) EndTurn(absl::OkStatus());
    if (turn_result_) out_.push_back(*std::move(turn_result_));
    // All turns have been answered, so the call ends well even if a drain has begun.
    if (half_closed_ && !queued_turn_.has_value()) return End(absl::OkStatus());
    if (draining_) return End(services_.CheckServing());
    if (queued_turn_.has_value()) {
      const v1::ChatTurn turn = *std::exchange(queued_turn_, std::nullopt);
      turn_memory_ = std::move(queued_turn_memory_);
      return BeginTurn(turn);
    }
    Read();
  }

  void Wake() override {  // any thread
    OnStrand([this] { Pump(); });
  }

 private:
  enum class Phase : uint8_t { kUnopened, kOpening, kIdle, kTurn, kEnding };

  // --- on the strand, unless said otherwise ---
  void Read() {
    if (reading_ || half_closed_ || phase_ == Phase::kEnding) return;
    reading_ = true;
    StartRead(&in_);
  }

  void HandleMessage() {
    if (phase_ == Phase::kEnding) return in_.Clear();  // nobody counts it
    v1::ChatRequest message;
    auto memory =
        std::make_unique<ByteHold>(services_.engine.options().request_memory, call_.peer());
    const absl::Status parsed = ParseMessage(in_, message, *memory);
    in_.Clear();  // also if it is refused: nobody counts it then
    if (!parsed.ok()) return End(parsed);
    if (phase_ == Phase::kUnopened) {
      if (message.has_open()) return Open(message.open());
      return End(absl::InvalidArgumentError("event: expected open as the first message"));
    }
    switch (message.event_case()) {
      case v1::ChatRequest::kTurn:
        // The turn's message holds its memory until the turn ends; a queued part holds its own.
        (phase_ == Phase::kIdle ? turn_memory_ : queued_turn_memory_) = std::move(memory);
        return HandleTurn(message.turn());
      case v1::ChatRequest::kCancel:
        // Without a running turn, the turn ended while the cancel was on its way.
        if (phase_ == Phase::kTurn) {
          turn_cancelled_ = true;
          pump_->Cancel();
        }
        return Read();
      case v1::ChatRequest::kOpen:
        return End(absl::InvalidArgumentError("open: expected as the first message only"));
      case v1::ChatRequest::EVENT_NOT_SET:
        return End(absl::InvalidArgumentError("event: expected turn or cancel, got none"));
    }
  }

  void HandleHalfClose() {
    half_closed_ = true;
    if (phase_ == Phase::kIdle) End(absl::OkStatus());
    if (phase_ == Phase::kUnopened) {
      End(absl::InvalidArgumentError("open: expected as the first message, got the stream's end"));
    }
  }

  void HandleTurn(const v1::ChatTurn& turn) {
    if (phase_ == Phase::kIdle) return BeginTurn(turn);
    if (turn_defaults_.more()) {
      // A client may send parts without waiting for their acknowledgements. Reading goes on once
      // this part begins, so a fast sender takes no memory here.
      queued_turn_ = turn;
      return;
    }
    End(absl::FailedPreconditionError("turn: another turn is still running"));
  }

  void Open(const v1::ChatOpen& open) {
    phase_ = Phase::kOpening;
    if (absl::Status status = services_.AdmitWork(); !status.ok()) return Opened(status);
    if (!open.has_session_id()) {
      created_ = true;
      ephemeral_ = !open.keep_session();
      return OpenNew(open);
    }
    if (absl::Status status = engine::CheckSessionId(open.session_id(), "open."); !status.ok()) {
      return Opened(status);
    }
    if (!open.memory().empty() || open.has_max_centroids() || open.has_ttl()) {
      return Opened(engine::BadField("open", "memory, max_centroids and ttl only for a new session",
                                     "them with session_id"));
    }
    services_.engine.sessions().Get(
        open.session_id(), record_.caller().tenant,
        [self = shared_from_this(), this](absl::StatusOr<engine::SessionInfo> session) {
          OnStrand([this, session = std::move(session)] { Opened(session); });
        });
  }

  void OpenNew(const v1::ChatOpen& open) {
    absl::StatusOr<engine::SessionOptions> options = ToSessionOptions(open, call_);
    if (!options.ok()) return Opened(options.status());
    options->field_prefix = "open.";
    record_.SetCaller(*options);
    services_.engine.sessions().Create(
        *std::move(options),
        [self = shared_from_this(), this](absl::StatusOr<engine::SessionInfo> session) {
          OnStrand([this, session = std::move(session)] { Opened(session); });
        });
  }

  void Opened(absl::StatusOr<engine::SessionInfo> session) {
    if (session.ok()) {
      session_id_ = session->id;
      record_.summary().SetSession(session_id_);
      position_ = session->position;
    }
    if (phase_ == Phase::kEnding) {
      // The call was cancelled meanwhile: no client knows the new session's id.
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

  void BeginTurn(const v1::ChatTurn& turn) {
    phase_ = Phase::kTurn;
    if (!turn_) turn_.emplace().number = ++*record_.summary().turns;
    turn_result_.reset();
    turn_cancelled_ = false;
    if (turn.has_sampling()) *turn_defaults_.mutable_sampling() = turn.sampling();
    if (turn.has_stop()) *turn_defaults_.mutable_stop() = turn.stop();
    if (turn.has_output()) *turn_defaults_.mutable_output() = turn.output();
    turn_defaults_.set_more(turn.more());
    if (absl::Status held = HoldSettings(); !held.ok()) return End(held);
    v1::ChatTurn whole = turn_defaults_;
    *whole.mutable_prompt() = turn.prompt();
    if (turn.has_expected_position()) whole.set_expected_position(turn.expected_position());
    pump_ = std::make_unique<TokenPump>(*this, turn_->work);
    BeginOnBlockingThread(turn.ByteSizeLong(),
                          [this, turn = std::move(whole), stream = pump_->stream(),
                           charged = std::exchange(opening_charged_, false)](absl::Status status) {
                            if (status.ok()) status = SubmitTurn(turn, stream, charged);
                            OnStrand([this, status] { TurnSubmitted(status); });
                          });
    Read();
  }

  // The settings stay for the next turns, but turn_memory_ counts them only while this one runs. So
  // the call's own memory, which nothing else of a Chat takes, counts them until its end.
  absl::Status HoldSettings() {
    turn_defaults_ = v1::ChatTurn(turn_defaults_);  // without the memory of what its fields had
    ByteHold& memory = record_.memory();
    const size_t bytes = turn_defaults_.SpaceUsedLong();
    memory.ShrinkTo(bytes);
    return ReserveBytes(memory, bytes - memory.bytes());
  }

  // On a blocking thread. charged: the tenant was charged for this turn with the call.
  // Uses only members that do not change while a turn is being submitted.
  absl::Status SubmitTurn(const v1::ChatTurn& turn,
                          const std::shared_ptr<engine::TokenStream>& stream, bool charged) {
    // A conversation may outlast its token.
    RETURN_IF_ERROR(services_.auth.Recheck(record_.caller()));
    RETURN_IF_ERROR(charged ? absl::OkStatus()
                            : services_.engine.ChargeRequest(record_.caller().tenant));
    engine::GenerateRequest request;
    request.field_prefix = "turn.";
    request.session_id = session_id_;
    record_.SetCaller(request);
    request.arrival = std::chrono::steady_clock::now();
    const PromptPlace place =
        FindPromptPlace(services_.engine, session_id_, record_.caller().tenant);
    RETURN_IF_ERROR(SetGeneration(turn, place, services_, request));
    if (turn.more() && request.prompt.empty()) return engine::EmptyPrompt(request.field_prefix);
    if (turn.more()) {
      request.stop.max_tokens = request.stop.min_tokens = 0;
      request.constraint = nullptr;  // of the answer to the last part
    }
    RETURN_IF_ERROR(ReserveBytes(*turn_memory_, StreamBytes(request)));
    return services_.engine.Submit(std::move(request), stream);
  }

  void TurnSubmitted(const absl::Status& status) {
    if (phase_ == Phase::kEnding) return;
    if (!status.ok()) return End(status);
    pump_->Submitted(status, weak_from_this());
  }

  void HandleFinished(const engine::Finished& finished) {
    position_ = finished.usage.position;
    v1::ChatResponse& response = turn_result_.emplace();
    if (turn_defaults_.more() && finished.reason != engine::FinishReason::kCancelled) {
      response.mutable_absorbed()->set_position(position_);
    } else {
      Fill(finished, *response.mutable_finished());
    }
  }

  void EndTurn(const absl::Status& status) {  // logs it
    record_.EndTurn(*turn_, status);
    WorkSummary& all = record_.summary().work;
    const WorkSummary& turn = turn_->work;
    if (turn.prompt_tokens) {
      all.prompt_tokens = all.prompt_tokens.value_or(0) + *turn.prompt_tokens;
      all.generated_tokens = all.generated_tokens.value_or(0) + turn.generated_tokens.value_or(0);
    }
    turn_.reset();
  }

  void End(absl::Status status) {
    if (phase_ == Phase::kEnding) return;
    const bool opening = phase_ == Phase::kOpening;
    phase_ = Phase::kEnding;
    end_status_ = std::move(status);
    if (pump_ != nullptr) pump_->Cancel();
    if (opening) return;  // Opened goes on with the end
    if (!ephemeral_ || session_id_.empty()) {
      cleaned_up_ = true;
      return Pump();
    }
    OnBlockingThread([this] {
      // NotFound is fine: it expired, or another call deleted it.
      (void)services_.engine.sessions().Delete(session_id_, record_.caller().tenant);
      OnStrand([this] {
        cleaned_up_ = true;
        Pump();
      });
    });
  }

  bool Advance() override {
    if (cleaned_up_) {
      if (turn_) EndTurn(end_status_);
      EndCall(end_status_);
      return true;
    }
    return phase_ == Phase::kTurn && pump_->Advance();
  }

  Phase phase_ = Phase::kUnopened;
  bool half_closed_ = false;
  bool draining_ = false;
  bool opening_charged_ = true;  // the call was charged, which covers its first turn
  absl::Status end_status_;

  grpc::ByteBuffer in_;
  bool reading_ = false;
  bool cleaned_up_ = false;  // phase kEnding: all that is left is to finish

  std::string session_id_;
  bool created_ = false;    // the session, by this stream
  bool ephemeral_ = false;  // the session ends with the stream
  int64_t position_ = 0;
  v1::ChatTurn turn_defaults_;  // settings so far; a turn changes those that it has

  std::unique_ptr<TokenPump> pump_;  // of the running turn
  // The running turn's Finished or PartAbsorbed. Sent once the engine has released the session, as
  // the client may answer it at once with the next turn.
  std::optional<v1::ChatResponse> turn_result_;
  bool turn_cancelled_ = false;              // the client asked for it
  std::optional<v1::ChatTurn> queued_turn_;  // came while a part was being prefilled
  std::unique_ptr<ByteHold> turn_memory_, queued_turn_memory_;
  std::optional<TurnRecord> turn_;  // from its first part to its Finished, or the call's end
};

}  // namespace

BidiReactor* StartChat(ServiceContext& services, const char* label,
                       grpc::CallbackServerContext* context) {
  return StartCall<ChatCall>(services, label, context);
}

}  // namespace ovq::server
