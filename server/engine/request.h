// One accepted call that consumes tokens: a generation, a score, a new session's prompt, or what a
// session reads again.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "base/clock.h"
#include "server/engine/answer.h"
#include "server/engine/engine_api.h"
#include "server/engine/engine_config.h"
#include "server/engine/prefix_cache.h"
#include "server/engine/quota.h"
#include "server/engine/session.h"

namespace ovq {

struct GenerateWork {
  GenerateRequest call;  // its prompt has moved to Request::tokens
  std::shared_ptr<TokenStream> stream;
  std::vector<std::unique_ptr<Completion>> completions;  // [n] from admission on
  std::vector<Sampled> first;               // [n] drawn, until every completion has a state
  std::optional<SteadyTime> blocked_since;  // the stream is full

  bool wants_tokens() const { return call.stop.max_tokens > 0; }
};
struct ScoreWork {
  int top_logprobs = 0;
  std::shared_ptr<CancelSignal> cancel;  // may be null
  ScoreCallback done;
  ScoreResult result;
};
// The prompt of a session that callers see once it is consumed.
struct OpenWork {
  std::shared_ptr<CancelSignal> cancel = {};  // may be null
  bool from_state = false;  // what it reads follows what an imported state has read
  bool waits = true;        // the last token stays outside the state
};

// The tokens between a session's nearest checkpoint and the position that it is rewound to.
struct RewindWork {
  std::shared_ptr<CancelSignal> cancel;  // may be null
};

// The tokens between the state of a session on disk and its last change.
struct WakeWork {
  bool waits = false;  // the last of them stays outside the state
};

// Engine thread only, once it is accepted.
struct Request {
  std::variant<GenerateWork, ScoreWork, OpenWork, RewindWork, WakeWork> work;
  std::string tenant;
  std::string client;               // CallRequest::client
  double weight = 1;                // of the client
  std::unique_ptr<QuotaHold> hold;  // of what a request without a session takes
  SteadyTime arrival;
  SteadyTime deadline = kNever;
  std::optional<SteadyTime> admitted, prefilled;
  int64_t order = 0;  // of admission
  bool ended = false;
  // Follows the end of a request that a session operation started, with its status: completes or
  // undoes the operation, answers its caller and calls Admission::Leave. Null for others.
  std::function<void(Request&, absl::Status)> on_end;

  // To be consumed before anything is drawn: [the session's pending token,] prompt. All of them, or
  // all but the last when nothing is drawn: that one becomes the pending token.
  std::vector<int32_t> tokens;
  int64_t n_prefill = 0;      // of them, to be consumed
  int64_t consumed = 0;       // of these, so far
  int64_t prompt_tokens = 0;  // without the pending one
  int64_t cached_tokens = 0;  // of the session when the call came
  int64_t cacheable = 0;      // of the prompt, from its first token on
  int64_t prefix_tokens = 0;  // of these, not read but taken from the PrefixCache
  PrefixRun prefix;

  std::shared_ptr<Sequence> sequence;    // consumes the tokens; null while waiting for admission
  absl::Status refused;                  // by the system, though the budget had room
  std::shared_ptr<Session> session;      // the same, if it is to outlive the request; else null
  const ModelVariant* memory = nullptr;  // of the states it takes; a turn takes none
  int32_t slot_cap = 0;
  size_t reserve_bytes = 0;  // of each state
  int n_states = 1;          // states it will need; more than one for several completions
  int promised_states = 0;   // of these, admitted but not yet acquired

  bool prefilling() const { return consumed < n_prefill; }
  GenerateWork* generate() { return std::get_if<GenerateWork>(&work); }
  const GenerateWork* generate() const { return std::get_if<GenerateWork>(&work); }
  RewindWork* rewind() { return std::get_if<RewindWork>(&work); }
  const RewindWork* rewind() const { return std::get_if<RewindWork>(&work); }
  const OpenWork* open() const { return std::get_if<OpenWork>(&work); }
  WakeWork* wake() { return std::get_if<WakeWork>(&work); }
  const WakeWork* wake() const { return std::get_if<WakeWork>(&work); }
  // Its session is one that callers see.
  bool in_session() const { return session != nullptr && open() == nullptr; }
  ScoreWork* score() { return std::get_if<ScoreWork>(&work); }
  const ScoreWork* score() const { return std::get_if<ScoreWork>(&work); }
  // How its caller cancels it; null if it cannot.
  const CancelSignal* cancel_signal() const;
};

// Why a request has to end now: its session was deleted, it was cancelled, or its deadline has
// passed.
absl::Status CheckAlive(const Request& request, SteadyTime now);

// What requests of valid requests have in common; takes the prompt.
std::shared_ptr<Request> NewRequest(const EngineModel& model, CallRequest& call, int64_t max_tokens,
                                    SteadyTime now);
// Of valid requests. A score's result has room for its rows, so that the engine thread need not
// grow it.
std::shared_ptr<Request> MakeRequest(const EngineModel& model, GenerateRequest call,
                                     std::shared_ptr<TokenStream> stream, SteadyTime now);
std::shared_ptr<Request> MakeRequest(const EngineModel& model, ScoreRequest call,
                                     std::shared_ptr<CancelSignal> cancel, ScoreCallback done,
                                     SteadyTime now);

}  // namespace ovq
