// One accepted call that consumes tokens: a generation, a score, a new session's prompt, or tokens
// that a session consumes again.
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
#include "server/engine/common/answer.h"
#include "server/engine/common/engine_api.h"
#include "server/engine/common/engine_config.h"
#include "server/engine/common/prefix_cache.h"
#include "server/engine/common/quota.h"
#include "server/engine/common/session.h"

namespace ovq::engine {

struct GenerateWork {
  GenerateRequest call;  // its prompt has moved to Request::tokens
  std::shared_ptr<TokenStream> stream;
  std::vector<std::unique_ptr<RunningAnswer>> answers = {};  // [n] from admission on
  // First draws of the last answers, until every answer has a state and these have begun.
  std::vector<model::Sampled> first = {};
  std::vector<model::TokenScore> prompt_scores = {};
  std::optional<SteadyTime> blocked_since = {};  // set while the stream is full

  bool wants_tokens() const { return call.stop.max_tokens > 0; }
};
struct ScoreWork {
  int top_logprobs = 0;
  ScoreCallback done;
  ScoreResult result = {};
};
// The tokens that an operation on a session reads.
struct SessionWork {
  enum Kind {
    kOpen,    // the prompt of a new session, which callers see once the prompt is consumed
    kRewind,  // from a session's nearest checkpoint to the position that it is rewound to
    kSwapIn   // from the state of a session on disk to its latest change
  };
  Kind kind;
  bool leaves_last = true;  // the last token stays outside the state
};

// Engine thread only, once accepted.
struct Request : std::enable_shared_from_this<Request> {
  std::variant<GenerateWork, ScoreWork, SessionWork> work;
  std::shared_ptr<CancelSignal> cancel;  // the caller's; null if the caller cannot cancel
  std::string tenant;
  std::string client;               // CallRequest::client
  double weight = 1;                // of the client
  std::unique_ptr<QuotaHold> hold;  // quota of a request without a session
  SteadyTime arrival;
  SteadyTime deadline = kNever;
  std::optional<SteadyTime> admitted, prefilled;
  int64_t order = 0;  // admission order
  bool ended = false;
  // Follows the end of a request that a session operation started, with its status: completes or
  // undoes the operation, answers its caller and calls Admission::Leave. Null for others.
  std::function<void(Request&, absl::Status)> on_end;

  // Tokens to consume before anything is drawn: [the session's pending token,] prompt. When nothing
  // is drawn, the last one is not consumed but becomes the pending token.
  std::vector<int32_t> tokens;
  int64_t n_prefill = 0;      // number of them to consume
  int64_t consumed = 0;       // number consumed so far
  int64_t prompt_tokens = 0;  // without the pending token
  int64_t cached_tokens = 0;  // position of the session when the call came
  bool may_go_on = false;     // without a prompt, with its session's unfinished answer
  int64_t cacheable = 0;      // CallRequest::cacheable
  int64_t shared_tokens = 0;  // CallRequest::shared_tokens
  int64_t prefix_tokens = 0;  // tokens restored from the PrefixCache
  PrefixRun prefix;
  // The answer is to be kept in the PrefixCache: its tokens are appended to `tokens`.
  bool keeps_answer = false;

  std::shared_ptr<Sequence> sequence;  // consumes the tokens; null until admission
  absl::Status refused;                // error of the system, though the budget had room
  std::shared_ptr<Session> session;    // the same sequence, if it outlives the request; else null
  const ModelVariant* variant = nullptr;  // of its states; a turn takes none
  int32_t slot_cap = 0;
  size_t reserve_bytes = 0;  // per state
  int n_states = 1;          // states that it needs; more than one for several answers
  int promised_states = 0;   // states admitted but not yet acquired

  size_t total_bytes() const { return reserve_bytes * static_cast<size_t>(n_states); }
  bool prefilling() const { return consumed < n_prefill; }
  GenerateWork* generate() { return std::get_if<GenerateWork>(&work); }
  const GenerateWork* generate() const { return std::get_if<GenerateWork>(&work); }
  // The tokens to score, from the first on, and how many alternatives each gets.
  int64_t n_scored() const {
    if (score() != nullptr) return n_prefill;
    return generate() != nullptr && generate()->call.output.prompt_scores ? prompt_tokens - 1 : 0;
  }
  int scored_alternatives() const {
    return score() != nullptr      ? score()->top_logprobs
           : generate() != nullptr ? generate()->call.output.prompt_scores.value_or(0)
                                   : 0;
  }
  ScoreWork* score() { return std::get_if<ScoreWork>(&work); }
  const ScoreWork* score() const { return std::get_if<ScoreWork>(&work); }
  const SessionWork* session_work() const { return std::get_if<SessionWork>(&work); }
  bool is(SessionWork::Kind kind) const {
    return session_work() != nullptr && session_work()->kind == kind;
  }
  // Whether its session is visible to callers.
  bool in_session() const { return session != nullptr && !is(SessionWork::kOpen); }
};

// Not OK if the request has to end now: its session was deleted, it was cancelled, or its deadline
// has passed.
absl::Status CheckAlive(const Request& request, SteadyTime now);

// Makes a request with the fields that all calls share; moves the prompt out of the call. The call
// must be valid.
std::shared_ptr<Request> NewRequest(const EngineModel& model, CallRequest& call, int64_t max_tokens,
                                    SteadyTime now);
// The calls must be valid. Room for a score's result is reserved here, so that the engine thread
// need not grow it.
std::shared_ptr<Request> MakeRequest(const EngineModel& model, GenerateRequest call,
                                     std::shared_ptr<TokenStream> stream, SteadyTime now);
std::shared_ptr<Request> MakeRequest(const EngineModel& model, ScoreRequest call,
                                     std::shared_ptr<CancelSignal> cancel, ScoreCallback done,
                                     SteadyTime now);

}  // namespace ovq::engine
