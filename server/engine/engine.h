// The engine: one thread that owns the model's sessions, batches their tokens and streams answers.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "kernels/common/device.h"
#include "model/state_layout.h"
#include "model/step_batch.h"
#include "model/tokenizer.h"
#include "server/engine/quota.h"
#include "server/engine/request.h"

namespace ovq {

// What the engine needs of a model; tests pass a function of their own.
struct EngineModel {
  int64_t vocab_size = 0;
  std::vector<int32_t> eos_token_ids;
  int32_t default_slot_cap = 0;  // 0: the model has no growing dictionary
  size_t full_kv_bytes_per_token = 0;
  const StateLayout* layout = nullptr;
  const Tokenizer* tokenizer = nullptr;  // may be null: no text, no stop strings
  // LanguageModel::Forward.
  std::function<TensorView(const StepBatch&, DeviceContext&, ScratchScope&)> forward;
};

struct EngineOptions {
  size_t state_memory_bytes = size_t{1} << 30;
  int max_sessions = 1024;         // live sessions, one-shot requests included
  int max_queue = 1024;            // requests waiting for admission
  int32_t max_batch_tokens = 512;  // rows of one step
  int32_t max_slot_cap = 65536;    // the largest cap a session may ask for
  int64_t max_prompt_tokens = 1 << 20;
  absl::Duration session_ttl = absl::Minutes(30);  // idle sessions are deleted after this
  uint64_t seed = 0;  // of the seeds and ids the server draws; 0: from the system
  std::shared_ptr<TenantQuotas> quotas;  // null: an engine's own, without limits
};

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
// Called on the engine thread; unset ones are skipped.
struct EngineEvents {
  std::function<void(const StepReport&)> step;
  std::function<void(absl::Duration since_arrival)> first_token;
  std::function<void(absl::Duration since_previous)> next_token;
  // Of each completion that ended by itself with two tokens or more: the mean of its
  // since_previous.
  std::function<void(absl::Duration)> time_per_token;
  std::function<void(const RequestReport&)> request_finished;
  std::function<void(RejectReason)> rejected;
  std::function<void(const SessionReport&)> session_event;
  std::function<void(absl::Duration)> cancel_released;  // cancel to memory given back
  std::function<void(absl::Duration)> stream_blocked;   // a reader was too slow for this long
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

// How many sessions with this cap fit at once: exact, as each reserves the most it can hold.
int SessionSlots(const StateLayout& layout, int32_t slot_cap, size_t state_memory_bytes,
                 int max_sessions);

// Any thread but the engine's own may call the public methods. Callbacks run on the engine thread,
// must not block and must not call back into the engine, Submit excepted.
class Engine {
 public:
  Engine(EngineModel model, EngineOptions options, std::unique_ptr<DeviceContext> context,
         EngineEvents events);
  ~Engine();  // as Drain(0), then joins

  // Validates, queues and returns at once. Errors come back here (InvalidArgument,
  // ResourceExhausted, NotFound, FailedPrecondition, Unavailable) or, found later, through the
  // stream's status. The answer: one Started, TokenChunks, one Finished per completion.
  absl::Status Submit(GenerateRequest request, std::shared_ptr<TokenStream> stream);

  using ScoreCallback = std::function<void(absl::StatusOr<ScoreResult>)>;
  // cancelled: polled every step.
  absl::Status SubmitScore(ScoreRequest request, std::function<bool()> cancelled,
                           ScoreCallback done);

  using SessionCallback = std::function<void(absl::StatusOr<SessionInfo>)>;
  void CreateSession(SessionOptions options, SessionCallback done);
  // The following block for at most one step. A session of another tenant is NotFound.
  absl::StatusOr<SessionInfo> GetSession(const std::string& id, const std::string& tenant);
  absl::Status DeleteSession(const std::string& id, const std::string& tenant);  // cancels its run
  struct SessionPage {
    std::vector<SessionInfo> sessions;  // ordered by id
    std::string next_page_token;        // empty at the end
  };
  absl::StatusOr<SessionPage> ListSessions(const std::string& tenant, int page_size,
                                           const std::string& page_token);
  // For who may see every tenant's.
  absl::Status DeleteSessionOfAny(const std::string& id);
  absl::StatusOr<SessionPage> ListSessionsOfAll(int page_size, const std::string& page_token);

  // Of the tenant's requests per second, for work that the engine does not do.
  absl::Status ChargeRequest(const std::string& tenant);
  TenantQuotas& quotas() { return *options_.quotas; }

  EngineStats Stats() const;  // of the last step boundary
  const EngineOptions& options() const { return options_; }
  const EngineModel& model() const { return model_; }

  // Refuses new work (Unavailable), lets running requests finish until `timeout`, then ends the
  // rest with Unavailable. Returns when nothing runs. True if all finished by themselves.
  bool Drain(absl::Duration timeout);

  // The session's live state bytes (StatePool::CopyOut), for tests and snapshots.
  // FailedPrecondition if busy.
  absl::StatusOr<std::vector<std::byte>> CopyState(const std::string& id,
                                                   const std::string& tenant);

 private:
  class Loop;
  const EngineModel model_;
  const EngineOptions options_;
  std::unique_ptr<Loop> loop_;
};

}  // namespace ovq
