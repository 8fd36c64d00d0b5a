// One accepted call that consumes tokens: a generation, a score, or a new session's prompt.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "absl/time/time.h"
#include "server/engine/answer.h"
#include "server/engine/engine.h"
#include "server/engine/quota.h"
#include "server/engine/session.h"

namespace ovq {

struct GenerateWork {
  GenerateRequest request;  // its prompt has moved to Job::rows
  std::shared_ptr<TokenStream> stream;
  std::vector<std::unique_ptr<Completion>> completions;  // [n] from admission on
  std::optional<absl::Time> blocked_since;               // the stream is full
  bool named_session = false;                            // the state outlives the request
};
struct ScoreWork {
  ScoreRequest request;  // its tokens have moved to Job::rows
  std::function<bool()> cancelled;
  Engine::ScoreCallback done;
  ScoreResult result;
};
struct AbsorbWork {
  Engine::SessionCallback done;
};

// Engine thread only, once it is posted.
struct Job {
  std::variant<GenerateWork, ScoreWork, AbsorbWork> work;
  std::string tenant;
  QuotaHold hold;  // of what a job without a session that outlives it takes
  absl::Time arrival, deadline, admitted, prefilled;
  int64_t order = 0;  // of admission
  bool ended = false;

  // To be consumed before anything is drawn: [the session's pending token,] prompt. All of them, or
  // all but the last when nothing is drawn: that one becomes the pending token.
  std::vector<int32_t> rows;
  int64_t n_feed = 0;
  int64_t fed = 0;
  int64_t prompt_tokens = 0;
  int64_t cached_tokens = 0;  // of the session when the call came

  std::shared_ptr<Session> session;  // consumes the rows; null while waiting for admission
  int32_t slot_cap = 0;
  size_t reserve_bytes = 0;  // of each state
  int n_states = 1;          // states it will need; more than one for several completions
  int unforked_states = 0;   // of these, promised but not yet acquired

  bool prefilling() const { return fed < n_feed; }
  GenerateWork* generate() { return std::get_if<GenerateWork>(&work); }
  const GenerateWork* generate() const { return std::get_if<GenerateWork>(&work); }
  ScoreWork* score() { return std::get_if<ScoreWork>(&work); }
  AbsorbWork* absorb() { return std::get_if<AbsorbWork>(&work); }
};

}  // namespace ovq
