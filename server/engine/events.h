// What the engine tells about its work, for metrics and logs.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <utility>

#include "absl/time/time.h"
#include "kernels/common/device.h"
#include "server/engine/quota.h"
#include "server/engine/request.h"

namespace ovq {

struct StepReport {
  int32_t prefill_rows = 0, decode_rows = 0;
  absl::Duration duration;
  // Tokens that the step's chunk updates took up, in each dictionary (layer and head): as new
  // centroids, and into live ones.
  int64_t dictionary_inserts = 0, dictionary_merges = 0;
};
struct RequestReport {
  FinishReason reason;
  Usage usage;
  absl::Duration total = absl::ZeroDuration();  // arrival to end
  bool score = false;                           // SubmitScore; reason is kLength when it succeeded
  // Live centroids / cap of the state that ended last; none without a dictionary or a state.
  std::optional<double> dictionary_fill = std::nullopt;
};
struct SessionReport {
  const char* event;        // "open", "close", "expire"
  absl::Duration duration;  // from the call to the state taken or given back; expire: 0
  int64_t position = 0;     // tokens of the conversation
};
// A callback that may be unset.
template <class T>
struct Event : std::function<void(T)> {
  using std::function<void(T)>::function;
  Event() = default;
  Event(std::function<void(T)> callback) : std::function<void(T)>(std::move(callback)) {}
  void operator()(T value) const {
    if (*this) std::function<void(T)>::operator()(value);
  }
};
// Called on the engine thread, `rejected` on the thread that is refused.
// They must not block and must not call back into the engine.
struct EngineEvents {
  Event<const StepReport&> step;
  Event<absl::Duration> first_token;  // since the arrival
  Event<absl::Duration> next_token;   // since the one before
  // Of each completion that ended by itself with two tokens or more: the mean of its
  // next_token.
  Event<absl::Duration> time_per_token;
  Event<const RequestReport&> request_finished;
  Event<RejectReason> rejected;
  Event<const SessionReport&> session_event;
  // Of streams: from Cancel to the memory given back.
  Event<absl::Duration> cancel_released;
  Event<absl::Duration> stream_blocked;  // a reader was too slow for this long
};
struct EngineStats {
  int requests_running = 0, requests_waiting = 0;
  int requests_blocked = 0;  // of the running ones, those that wait for their reader
  int64_t waiting_prompt_tokens = 0;
  int sessions_active = 0, sessions_idle = 0;  // with / without a running request
  int session_slots = 0;                       // SessionSlots of the model's default cap
  size_t state_bytes_committed = 0, state_bytes_reserved = 0, state_bytes_budget = 0;
  int64_t live_slots = 0;                // summed over sessions
  size_t equivalent_kv_cache_bytes = 0;  // what the same sessions' positions would need
  std::optional<GpuInfo> gpu;            // at the time of the call; none without a GPU
};

}  // namespace ovq
