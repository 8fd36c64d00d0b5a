#include "server/calls/token_pump.h"

#include <optional>
#include <utility>

namespace ovq::server {

void TokenPump::Submitted(const absl::Status& status, const std::weak_ptr<void>& owner) {
  if (!status.ok()) stream_->Close(status);
  state_ = State::kOpen;
  // Calls the listener at once if something is waiting.
  stream_->SetListener([owner, &sink = sink_] {
    if (const auto held = owner.lock()) sink.Wake();
  });
}

bool TokenPump::Advance() {
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

void TokenPump::Refuse(absl::Status why) {
  refusal_ = std::move(why);
  stream_->Cancel();
}

}  // namespace ovq::server
