// The turns of a Chat stream.
#include <utility>

#include "absl/time/clock.h"
#include "server/engine/validate.h"
#include "server/rpc/chat_call.h"
#include "server/rpc/convert.h"

namespace ovq {

void ChatCall::BeginTurn(const v1::ChatTurn& turn) {
  phase_ = Phase::kTurn;
  if (!turn_) turn_.emplace().number = ++*record_.summary().turns;
  part_ = turn.more();
  turn_result_.reset();
  submitted_ = false;
  if (turn.has_sampling()) sampling_ = turn.sampling();
  if (turn.has_stop()) stop_ = turn.stop();
  if (turn.has_output()) output_ = turn.output();
  stream_ = std::make_shared<TokenStream>();
  OnBlockingThread([this, turn, stream = stream_] {
    OnStrand([this, status = SubmitTurn(turn, stream)] { TurnSubmitted(status); });
  });
  Read();
}

// Reads only what does not change while a turn is being submitted.
absl::Status ChatCall::SubmitTurn(const v1::ChatTurn& turn,
                                  const std::shared_ptr<TokenStream>& stream) {
  // A conversation may outlast its token.
  if (absl::Status status = services_.auth.Recheck(caller_); !status.ok()) return status;
  GenerateRequest request;
  request.field_prefix = "turn.";
  request.session_id = session_id_;
  request.tenant = caller_.tenant;
  request.arrival = std::chrono::steady_clock::now();
  request.deadline = record_.deadline();
  SetSampling(sampling_, request);
  SetOutput(output_, request);
  if (absl::Status status = SetStop(stop_, request); !status.ok()) return status;
  absl::StatusOr<std::vector<int32_t>> prompt = PromptTokens(
      turn.prompt(), request.field_prefix, /*at_start=*/position_ == 0, services_.engine);
  if (!prompt.ok()) return prompt.status();
  if (turn.more() && prompt->empty()) return EmptyPrompt(request.field_prefix);
  if (turn.more()) request.stop.max_tokens = request.stop.min_tokens = 0;
  request.prompt = *std::move(prompt);
  return services_.engine.Submit(std::move(request), stream);
}

void ChatCall::TurnSubmitted(const absl::Status& status) {
  if (phase_ == Phase::kEnding) return;
  if (!status.ok()) return End(status);
  submitted_ = true;
  Listen(*stream_);
}

void ChatCall::HandleEvent(const StreamEvent& event) {
  turn_->work.Add(event);
  if (event.started && !part_) Fill(*event.started, *out_.emplace_back().mutable_started());
  if (event.chunk) Fill(*event.chunk, *out_.emplace_back().mutable_chunk());
  if (event.finished) HandleFinished(*event.finished);
}

void ChatCall::HandleFinished(const Finished& finished) {
  position_ = finished.usage.position;
  v1::ChatResponse& response = turn_result_.emplace();
  if (part_ && finished.reason != FinishReason::kCancelled) {
    response.mutable_absorbed()->set_position(static_cast<uint64_t>(position_));
  } else {
    Fill(finished, *response.mutable_finished());
  }
}

void ChatCall::EndTurn(const absl::Status& status) {
  record_.EndTurn(*turn_, status);
  WorkSummary& all = record_.summary().work;
  const WorkSummary& turn = turn_->work;
  if (turn.prompt_tokens) {
    all.prompt_tokens = all.prompt_tokens.value_or(0) + *turn.prompt_tokens;
    all.generated_tokens = all.generated_tokens.value_or(0) + turn.generated_tokens.value_or(0);
  }
  turn_.reset();
}

void ChatCall::HandleStreamEnd() {
  const absl::Status status = stream_->status();
  // A cancelled turn has its Finished, and the conversation goes on.
  if (!status.ok() && !(absl::IsCancelled(status) && turn_result_)) return End(status);
  phase_ = Phase::kIdle;
  stream_ = nullptr;
  if (turn_result_ && turn_result_->has_finished()) EndTurn(absl::OkStatus());
  if (turn_result_) out_.push_back(*std::move(turn_result_));
  if (draining_) return End(services_.CheckServing());
  if (held_.has_value()) {
    const v1::ChatTurn turn = *std::exchange(held_, std::nullopt);
    return BeginTurn(turn);
  }
  if (half_closed_) return End(absl::OkStatus());
  Read();
}

}  // namespace ovq
