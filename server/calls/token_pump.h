// Moves the events of one request from the engine's TokenStream to its client, for gRPC and HTTP.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "server/engine/common/engine_api.h"
#include "server/telemetry/call_summary.h"

namespace ovq::server {

// A client's side of a TokenPump.
class TokenSink {
 public:
  virtual ~TokenSink() = default;
  // One event for the client. Called from Advance.
  virtual void OnEvent(const engine::StreamEvent& event) = 0;
  // The end of the stream, once, after its last event. Called from Advance.
  virtual void OnStreamEnd(const absl::Status& status) = 0;
  // Asks for Advance where the client's writes are made. Any thread, the engine's, too: must not
  // block. Extra calls do no harm.
  virtual void Wake() = 0;
};

// States: kSubmitting -> kOpen -> kEnded.
//
// Events wait in the TokenStream until the sink can write, which is when it calls Advance. So a
// slow client fills its own stream (TokenStream::kCapacity), and the engine blocks that request
// alone.
class TokenPump {
 public:
  // The sink owns the pump. work: the sum of what the events say, and outlives it.
  TokenPump(TokenSink& sink, WorkSummary& work) : sink_(sink), work_(work) {}

  // For Engine::Submit.
  const std::shared_ptr<engine::TokenStream>& stream() const { return stream_; }
  // The result of Engine::Submit, once; an error ends the stream. `owner` keeps the sink alive
  // while it is woken. Any thread.
  void Submitted(const absl::Status& status, const std::weak_ptr<void>& owner) {
    if (!status.ok()) stream_->Close(status);
    state_ = State::kOpen;
    // Calls the listener at once if something is waiting.
    stream_->SetListener([owner, &sink = sink_] {
      if (const auto held = owner.lock()) sink.Wake();
    });
  }

  bool submitted() const { return state_ != State::kSubmitting; }

  // Hands the sink the next event or the end. False: there is neither, and the sink is woken when
  // there is. Never two calls at a time. The sink may destroy the pump in its OnStreamEnd.
  bool Advance() {
    if (state_ != State::kOpen) return false;
    if (const std::optional<engine::StreamEvent> event = stream_->TryPop()) {
      work_.Add(*event);
      if (refusal_.ok()) sink_.OnEvent(*event);
      return true;
    }
    if (!stream_->closed()) return false;
    state_ = State::kEnded;
    const absl::Status status = refusal_.ok() ? stream_->status() : refusal_;
    sink_.OnStreamEnd(status);
    return true;
  }

  // The client is gone, or wants no more: the engine ends the request. Any thread.
  void Cancel() { stream_->Cancel(); }
  // From OnEvent: cancels the request. No event is written any more, and the end has this status.
  void Refuse(absl::Status why) {
    refusal_ = std::move(why);
    stream_->Cancel();
  }

 private:
  enum class State : uint8_t { kSubmitting, kOpen, kEnded };

  TokenSink& sink_;
  WorkSummary& work_;
  const std::shared_ptr<engine::TokenStream> stream_ = std::make_shared<engine::TokenStream>();
  std::atomic<State> state_ = State::kSubmitting;
  absl::Status refusal_;
};

}  // namespace ovq::server
