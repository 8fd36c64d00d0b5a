// The engine's requests and results, and the bounded stream on which an answer comes back. Free of
// protobuf.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "model/answers/answer_parser.h"
#include "model/logits_reader.h"
#include "model/sampler.h"
#include "server/engine/common/answer_constraint.h"

namespace ovq::engine {

struct StopConditions {
  int64_t max_tokens = 256;  // 0: consume the prompt, generate nothing
  int64_t min_tokens = 0;    // end-of-sequence and stop ids are not drawn before this many tokens
  std::vector<std::string> strings;
  std::vector<int32_t> token_ids;
  // Special tokens that `strings` has, by id: such a token ends the answer as its text would, which
  // special tokens do not add to it.
  std::map<int32_t, std::string> special_tokens = {};
  bool ignore_eos = false;
  bool include_stop_text = false;
};

// Whether tokens are drafted, to verify several per iteration. Answers are the same either way.
enum class Speculation : int32_t { kOff = 1, kNgram = 2 };
constexpr bool IsKnown(Speculation how) {
  return how == Speculation::kOff || how == Speculation::kNgram;
}

// How an answer is taken apart.
struct PartsOptions {
  std::string begun = {};  // what the prompt has written of the answer already
  answers::ParserOptions parser = {};
  bool one_call = false;  // the answer ends with its first call
};

struct OutputOptions {
  bool logprobs = false;
  int top_logprobs = 0;
  std::optional<PartsOptions> parts = {};       // parts in place of text
  std::optional<Speculation> speculation = {};  // default: the server's
  // The prompt's tokens are scored as they are prefilled, each with so many of the best
  // alternatives. One-shot only; such a prompt is not taken from the prefix cache.
  std::optional<int> prompt_scores = {};
};

// The fields that all calls that consume tokens share.
struct CallRequest {
  std::vector<int32_t> prompt = {};  // checked against the vocabulary by the Engine
  int64_t cacheable = 0;             // first tokens of the prompt that PrefixCache may keep
  int64_t shared_tokens = 0;         // of these, the first that other conversations begin with, too
  bool cache_answer = false;         // of a sequence that ends with the call, its end may be kept
  // In a session's turn: the prompt has all tokens of the conversation, and the session first goes
  // back to the last of its tokens up to which it has the same ones.
  bool rewrites = false;
  std::string tenant = {};  // owner of the session; "" without authentication
  // The unit of fair sharing, whatever the number of its calls: a tenant, or a connection where no
  // tokens are asked for.
  std::string client = {};
  std::string variant = {};                // name of a ModelVariant; "": the first
  std::optional<int32_t> slot_cap = {};    // default: the variant's
  std::string field_prefix = {};           // put before a field's name: "turn." in a Chat
  std::optional<SteadyTime> arrival = {};  // default: when the Engine gets it
  SteadyTime deadline = kNever;
};

struct GenerateRequest : CallRequest {  // variant, slot_cap: one-shot only
  std::string session_id;               // empty: a session that ends with the request
  model::SamplingParams sampling;
  std::optional<uint64_t> expected_position;  // of the session, or FailedPrecondition
  bool seed_given = false;  // sampling.seed = 0 is a seed too; else the engine draws one for 0
  StopConditions stop;
  OutputOptions output;
  // The form that each answer keeps, to its last byte; null: any. A session keeps the constraint of
  // an answer that ended before its form did, by its length or by its caller: a call without a
  // prompt goes on with that answer, unless it has another constraint.
  std::shared_ptr<const AnswerConstraint> constraint = {};
  int n = 1;  // answers; more than one only without session_id
};

enum class FinishReason : uint8_t { kStop, kLength, kCancelled, kDeadline, kError };
inline constexpr std::array<const char*, 5> kFinishReasons = {"stop", "length", "cancelled",
                                                              "deadline", "error"};
inline const char* FinishReasonName(FinishReason reason) {
  return kFinishReasons[static_cast<size_t>(reason)];
}

struct Usage {
  int64_t prompt_tokens = 0;  // of this request, without the session's pending token
  // Tokens that did not run: the session had them when the request came, or PrefixCache had them.
  int64_t cached_tokens = 0;
  int64_t generated_tokens = 0;
  int64_t reasoning_tokens = 0;  // of the generated; known if parts are asked for
  int64_t state_bytes = 0;       // committed for the session at the end
  int64_t position = 0;          // tokens of the session at the end
  int64_t merged_tokens = 0;     // StateLayout::MergedTokensAt the end
  // Drafted tokens, and how many of them were accepted.
  int64_t drafted_tokens = 0, accepted_tokens = 0;
  absl::Duration queue_time, prefill_time, decode_time;
};

struct Started {
  std::string session_id;  // empty for a one-shot request
  int64_t prompt_tokens = 0;
  int64_t cached_tokens = 0;
  uint64_t seed = 0;     // the seed in use; the server draws one when the request has none
  int64_t position = 0;  // tokens of the session before; 0 for a one-shot request
};
struct TokenChunk {
  int index = 0;                                // of the n answers
  std::string text;                             // valid UTF-8
  std::vector<answers::AnswerPart> parts = {};  // in place of text, if asked for
  std::vector<int32_t> token_ids;
  std::vector<float> logprobs;                        // [token_ids], if asked for
  std::vector<std::vector<model::TokenLogprob>> top;  // [token_ids], if asked for
};
struct Finished {
  int index = 0;
  FinishReason reason = FinishReason::kStop;
  std::string matched_stop = {};                 // stop string, if that ended it
  std::optional<int32_t> matched_token_id = {};  // stop or end-of-sequence token, if that ended it
  Usage usage = {};
};
struct StreamEvent {
  std::optional<Started> started = {};
  // [prompt tokens less 1]: row i scores token i + 1; before the first chunk, if asked for.
  std::optional<std::vector<model::TokenScore>> prompt_scores = {};
  std::optional<TokenChunk> chunk = {};
  std::optional<Finished> finished = {};
};

// The caller's signal to the engine to end a request. Any thread.
//
// std::mutex and not absl::Mutex: the packaged abseil is not instrumented for the thread sanitizer.
class CancelSignal {
 public:
  void Cancel();  // the engine ends the request within one iteration; only the first call counts
  bool cancelled() const { return time().has_value(); }
  std::optional<SteadyTime> time() const;  // of the first Cancel

  // Set by whoever has the request, to be woken: the queue in which it waits, then the engine.
  void SetWake(std::function<void()> wake);
  void Wake() const;

 private:
  mutable std::mutex mutex_;
  std::optional<SteadyTime> time_;
  std::function<void()> wake_;
};

// Events from the engine thread (Push, Close) to one reader (TryPop, Cancel). Push never blocks:
// the engine pauses a request whose stream is full, so the stream holds at most one iteration's
// events more than its capacity.
//
// A request that is cancelled while running still gets one Finished with kCancelled (and usage) per
// unfinished answer, then Close(Cancelled). Other errors close the stream without Finished.
class TokenStream {
 public:
  static constexpr size_t kCapacity = 256;  // events; a chunk counts once per token
  explicit TokenStream(size_t capacity = kCapacity) : capacity_(capacity > 0 ? capacity : 1) {}

  // --- engine thread ---
  void Push(StreamEvent event);
  void Close(absl::Status status);  // no event follows; OK after the last Finished
  bool full() const;
  CancelSignal& cancel_signal() { return cancel_; }  // also woken when a full stream drains

  // --- reader, any thread ---
  // Sets the listener, which the engine thread calls after each Push and Close, without the
  // stream's lock; SetListener calls it once itself if something is waiting. Calls never overlap.
  // Null removes the listener and waits for a running call to end, unless called from the listener,
  // which may set no other.
  void SetListener(std::function<void()> listener);
  std::optional<StreamEvent> TryPop();
  bool closed() const;          // closed and empty
  absl::Status status() const;  // after closed()
  void Cancel() { cancel_.Cancel(); }

 private:
  void Notify();
  static size_t SizeOf(const StreamEvent& event) {
    return event.chunk ? event.chunk->token_ids.size() : 1;
  }

  const size_t capacity_;
  CancelSignal cancel_;
  mutable std::mutex mutex_;  // guards the members down to status_
  std::deque<StreamEvent> events_;
  size_t size_ = 0;  // of all events_ (SizeOf)
  bool closed_ = false;
  absl::Status status_;

  std::recursive_mutex listener_mutex_;  // held while the listener runs, which may remove itself
  std::function<void()> listener_;
};

struct ScoreRequest : CallRequest {  // prompt: at least one token
  int top_logprobs = 0;              // up to the vocabulary size
};
struct ScoreResult {
  // [n_tokens]: row i scores token i + 1 given tokens 0..i (none in the last row), with the best
  // alternatives.
  std::vector<model::TokenScore> rows;
  int64_t state_bytes = 0;
};
// Called on the engine thread: should pass the rows on, not process them.
using ScoreCallback = std::function<void(absl::StatusOr<ScoreResult>)>;

struct SessionOptions : CallRequest {  // prompt: consumed before the call returns; may be empty
  // The answer that the prompt, or the image's conversation, ends with; null: none to go on with.
  std::shared_ptr<const UnfinishedAnswer> unfinished = {};
  std::string key = {};  // prefix of the id; may be empty
  // Idle time after which it is deleted; default: the server's.
  std::optional<absl::Duration> ttl = {};
  std::shared_ptr<CancelSignal> cancel = {};  // may be null
  bool imported = false;    // from a file; reported as "import" in place of "open"
  bool keep_tokens = true;  // 4 bytes per token; without them the session cannot be rewound
};
// A position to which a session can rewind.
struct TurnEnd {
  int64_t position;
  int64_t replay_tokens;  // tokens that a rewind to it consumes again
};
struct SessionInfo {
  std::string id;  // [KEY.] and 32 hex digits, 128 random bits
  std::string tenant;
  int64_t position = 0;  // tokens of the conversation
  std::optional<int32_t> last_token;
  std::string cache_policy;  // ModelVariant::name
  int32_t slot_cap = 0;
  size_t state_bytes = 0;      // committed now
  size_t state_bytes_cap = 0;  // the most it will ever hold
  int64_t live_slots = 0;
  bool keeps_tokens = false;
  std::vector<TurnEnd> turns;  // the last turns, rising; set by GetSession only
  bool busy = false;
  bool durable = false;     // all that callers were told of it is on disk
  bool hibernated = false;  // its state is on disk alone
  // Position at which the model's output was not a number, or an iteration failed halfway. No call
  // uses the state any more.
  std::optional<int64_t> damaged_at;
  absl::Time created, last_used, expires;
  // Tokens consumed and drawn by this session; a fork does not count those of its parent.
  int64_t prompt_tokens_total = 0, generated_tokens_total = 0;
};
struct ForkOptions {
  std::string session_id;
  std::string tenant = {}, client = {};
  int64_t count = 1;                       // children
  std::optional<absl::Duration> ttl = {};  // of each; default: the session's
};
struct RewindOptions {
  std::string session_id;
  std::string tenant = {}, client = {};
  uint64_t position = 0;  // tokens of the conversation that stay
  bool dry_run = false;   // only compute replay_tokens
  SteadyTime deadline = kNever;
};
struct RewindResult {
  SessionInfo session;
  int64_t replay_tokens = 0;  // tokens consumed again; in a dry run, those that would be
};
using RewindCallback = std::function<void(absl::StatusOr<RewindResult>)>;  // on the engine thread
using SessionCallback = std::function<void(absl::StatusOr<SessionInfo>)>;  // on the engine thread
using SessionsCallback =                                                   // on the engine thread
    std::function<void(absl::StatusOr<std::vector<SessionInfo>>)>;
struct SessionPage {
  std::vector<SessionInfo> sessions;  // ordered by id
  std::string next_page_token;        // empty at the end
};

}  // namespace ovq::engine
