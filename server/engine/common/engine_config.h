// The configuration of an engine: its model, its options, and callbacks that observe its work.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "absl/time/time.h"
#include "base/byte_budget.h"
#include "base/clock.h"
#include "kernels/common/device.h"
#include "model/answers/answer_syntax.h"
#include "model/batch.h"
#include "model/chat_template/chat_format.h"
#include "model/constraint/matcher.h"
#include "model/state_layout.h"
#include "model/tokenizer.h"
#include "server/engine/common/engine_api.h"
#include "server/engine/common/fleet_keys.h"
#include "server/engine/common/host_time.h"
#include "server/engine/common/quota.h"

namespace ovq::store {
class SessionStore;
}  // namespace ovq::store

namespace ovq::engine {

// The model with one cache policy: the layout of its states, and the functions that run on them.
struct ModelVariant {
  std::string name;         // callers choose the variant by it
  std::string fingerprint;  // of the model with this policy, hex
  std::vector<std::string> layer_types;
  int32_t default_slot_cap = 0;  // 0: no layer has a growing dictionary
  const model::StateLayout* layout = nullptr;
  // ExactTokens of a session with this slot cap.
  std::function<std::optional<int64_t>(int64_t slot_cap)> exact_tokens;
  // LanguageModel::Forward.
  std::function<kernels::TensorView(const model::Batch&, kernels::DeviceContext&,
                                    kernels::ScratchScope&)>
      forward;
  // LanguageModel::UndoExtents and CanUndoSuffix. Without them nothing is drafted.
  std::function<std::vector<kernels::StateExtent>(const kernels::TokenRange&)> undo_extents =
      nullptr;
  std::function<bool(const kernels::TokenRange&)> can_undo_suffix = nullptr;
};

// The engine's view of a model. Tests pass fake functions.
struct EngineModel {
  int64_t vocab_size = 0;
  std::vector<int32_t> eos_token_ids;
  size_t full_kv_bytes_per_token = 0;
  // Bytes of weights that an iteration of one token reads beside the states; iteration times are
  // predicted from both. 0: iterations have no bound in time.
  size_t weight_bytes = 0;
  std::vector<ModelVariant> variants;              // at least one; the first is the default
  const model::Tokenizer* tokenizer = nullptr;     // may be null: no text, no stop strings
  const jinja::ChatFormat* chat_format = nullptr;  // may be null: no messages
  answers::AnswerSyntax answer_syntax = {};        // what the chat format shows of answers
  std::set<int32_t> marker_tokens = {};            // special tokens of the answer syntax
  // The tokens' texts, for constraints (MakeVocabulary); null: constraints are refused.
  std::shared_ptr<const constraint::Vocabulary> vocabulary = {};

  // The tokenizer is set before. calls: how the model writes calls; unset: as the format shows.
  void SetChatFormat(const jinja::ChatFormat* format,
                     const std::optional<answers::CallSyntax>& calls = std::nullopt) {
    chat_format = format;
    if (format == nullptr) return;
    answer_syntax = answers::LearnAnswerSyntax(*format);
    if (calls) answer_syntax.calls = *calls;
    if (tokenizer == nullptr) return;
    marker_tokens = answers::MarkerTokens(answer_syntax, tokenizer->special_tokens());
  }

  // The tokens' texts in answers: nothing for special tokens but those that are markers.
  std::shared_ptr<const constraint::Vocabulary> MakeVocabulary() const;

  bool can_undo() const {
    return std::ranges::all_of(variants, [](const ModelVariant& variant) {
      return variant.undo_extents != nullptr && variant.can_undo_suffix != nullptr;
    });
  }
  // The variant of this name; "": the first. Null if there is none.
  const ModelVariant* FindVariant(std::string_view name) const {
    if (name.empty()) return &variants.front();
    const auto found = std::ranges::find(variants, name, &ModelVariant::name);
    return found == variants.end() ? nullptr : &*found;
  }
  // The variant whose states have this layout, which is one of the model's.
  const ModelVariant& VariantWith(const model::StateLayout* layout) const {
    return *std::ranges::find(variants, layout, &ModelVariant::layout);
  }
};

// Kinds of work that a token brings to an iteration: a row of an answer with its draw, a row of a
// prompt, a further draw from a row, and one of the best log-probabilities of a row.
enum class RowKind : uint8_t { kAnswer, kPrompt, kDraw, kLogprob };
inline constexpr std::array<const char*, 4> kRowKinds = {"answer", "prompt", "draw", "logprob"};
using RowCounts = std::array<double, kRowKinds.size()>;  // by RowKind

struct EngineOptions {
  size_t state_memory_bytes = size_t{1} << 30;
  size_t checkpoint_memory_bytes = size_t{1} << 28;    // host memory of Checkpoints
  size_t prefix_memory_bytes = size_t{1} << 28;        // host memory of PrefixCache; 0: no cache
  std::shared_ptr<store::SessionStore> session_store;  // null: sessions are in memory alone
  // Host memory for calls' messages and answers; null: the engine makes a budget of 1 GiB.
  std::shared_ptr<ByteBudget> request_memory;
  // With a store: idle sessions' states are swapped out when others need the memory.
  bool overcommit = false;
  // Sign the states of exports and snapshots; an import uses a state that they signed, after
  // checks. Null: no keys.
  std::shared_ptr<const FleetKeys> fleet_keys = {};
  bool trust_session_files = false;  // imports use any state after checks; not with fleet_keys
  int max_sessions = 1024;           // live sessions, one-shot requests included
  int max_queue = 1024;              // requests waiting for admission
  int32_t max_batch_tokens = 512;    // tokens of one batch
  int32_t max_slot_cap = 65536;      // the largest cap a session may ask for
  int64_t max_prompt_tokens = 1 << 20;
  // Bytes copied between two iterations, for forks and for the answers to prompts; at least one
  // state is copied.
  size_t copy_bytes_per_iteration = size_t{32} << 20;
  absl::Duration session_ttl = absl::Minutes(30);    // idle sessions are deleted after this
  absl::Duration max_session_ttl = absl::Hours(24);  // the longest one that a caller may ask for
  // Target time of an iteration with both prompts and answers; default: kTargetIterations
  // (batch_planner.h).
  std::optional<absl::Duration> target_step_time = {};
  // The default target is at least this, where short iterations would leave a device idle.
  absl::Duration least_step_time = absl::ZeroDuration();
  Speculation speculation = Speculation::kOff;  // default of requests
  // Host memory of MatcherCache, and as much again of compiled constraints, in use or kept.
  size_t constraint_memory_bytes = size_t{1} << 27;
  constraint::Limits constraint_limits = {};  // of constraints in session files
  // Tokens without a choice are taken without asking the model. Answers are the same either way.
  bool force_tokens = true;
  // The engine measures for so long at most (Calibrate) what kinds of rows cost on its machine,
  // before it runs calls, and learns from them then; until it knows, rows of all kinds cost
  // `row_costs` each, in answers' rows.
  absl::Duration calibration = absl::ZeroDuration();
  RowCounts row_costs = {1, 1, 0, 0};
  uint64_t seed = 0;  // for the seeds and ids that the server draws; 0: system randomness
  std::shared_ptr<TenantQuotas> quotas;  // null: the engine makes one without limits
  std::shared_ptr<HostTime> host_time;   // null: the engine makes one
  Clock clock;
};

// --- reports of the engine's work, for metrics and logs ---

struct IterationReport {
  int32_t prefill_tokens = 0, decode_tokens = 0;
  // Drafted tokens in addition, and how many of them were accepted.
  int32_t drafted_tokens = 0, accepted_tokens = 0;
  absl::Duration duration;
  // Tokens that chunk updates inserted as new centroids, and merged into live ones, in each
  // dictionary (layer and head).
  int64_t dictionary_inserts = 0, dictionary_merges = 0;
};
struct RequestReport {
  FinishReason reason;
  Usage usage;
  absl::Duration total = absl::ZeroDuration();  // arrival to end
  bool score = false;                           // SubmitScore; reason is kLength when it succeeded
  // Live centroids / cap in the state that ended last; none without a dictionary or a state.
  std::optional<double> dictionary_fill = std::nullopt;
};
struct SessionReport {
  const char* event;        // "open", "fork", "rewind", "export", "import", "wake", ..., "expire"
  absl::Duration duration;  // from the call until the state was acquired or released; expire: 0
  int64_t position = 0;     // tokens of the conversation
  int64_t replayed = 0;     // tokens that a rewind or a swap in has replayed
};
// How an import got its session's state: by reading the tokens again; from the file, which a fleet
// key had signed; or from the file, as trust_session_files takes any.
enum class ImportKind : uint8_t { kReplayed, kSigned, kTrusted };
inline constexpr std::array<const char*, 3> kImportKinds = {"replayed", "signed", "trusted"};
// Callbacks run on the engine thread; `rejected` also on the thread of a refused call. They must
// not block, and must not call the engine.
struct EngineEvents {
  static constexpr auto kNothing = [](const auto&) {};
  std::function<void(const IterationReport&)> step = kNothing;
  std::function<void(absl::Duration)> first_token = kNothing;  // time since the request's arrival
  std::function<void(absl::Duration)> next_token = kNothing;   // time since the previous token
  // Mean time of next_token, for each answer of at least two tokens that ended by itself.
  std::function<void(absl::Duration)> time_per_token = kNothing;
  std::function<void(const RequestReport&)> request_finished = kNothing;
  std::function<void(RejectReason)> rejected = kNothing;
  std::function<void(const SessionReport&)> session_event = kNothing;
  std::function<void(ImportKind)> session_imported = kNothing;
  // The model's output was not a number at this position; the call fails.
  std::function<void(int64_t)> not_a_number = kNothing;
  // Time from a stream's Cancel until its memory was released.
  std::function<void(absl::Duration)> cancel_released = kNothing;
  std::function<void(absl::Duration)> stream_blocked =
      kNothing;  // a reader was too slow for this long
};
// Where a copy of the PrefixCache stands: where other conversations part from a prompt, at a
// prompt's end, or at an answer's.
enum class PrefixKind : uint8_t { kShared, kPrompt, kAnswer };
inline constexpr std::array<const char*, 3> kPrefixKinds = {"shared", "prompt", "answer"};
// Why a prompt or an answer leaves no copy.
enum class PrefixLoss : uint8_t {
  kNotCacheable,  // its caller lets nothing be kept
  kTooShort,      // it has too few tokens, or too few behind the copy before
  kNoMemory,      // it exceeds the budget, or the system has no memory
  kBusy           // many answers ended at once
};
inline constexpr std::array<const char*, 4> kPrefixLosses = {"not_cacheable", "too_short",
                                                             "no_memory", "busy"};
struct PrefixStats {
  int64_t queries = 0;  // prompts of which enough may be cached
  // By PrefixKind: queries that began with a copy, and the tokens behind these.
  std::array<int64_t, kPrefixKinds.size()> hits = {}, cached_tokens = {};
  // Tokens of queries that the cache knows, but prefilled again as no copy stands at their end.
  int64_t lost_tokens = 0;
  std::array<int64_t, kPrefixLosses.size()> not_kept = {};  // by PrefixLoss
  int64_t evictions = 0;
  size_t bytes = 0, budget_bytes = 0;
};
// MatcherCache since the start, but for matchers and bytes.
struct ConstraintStats {
  int64_t masks = 0;                           // looked up
  int64_t forced_tokens = 0;                   // drawn without asking the model
  absl::Duration time = absl::ZeroDuration();  // of the engine's thread, for places and masks
  int64_t matchers = 0;                        // forms in memory
  size_t bytes = 0, budget_bytes = 0;
};
struct EngineStats {
  int requests_running = 0, requests_waiting = 0;
  int requests_blocked = 0;  // running requests that wait for their reader
  int64_t waiting_prompt_tokens = 0;
  int sessions_active = 0, sessions_idle = 0;  // with / without a running request
  int sessions_hibernated = 0;                 // their state is on disk
  int session_slots = 0;                       // SessionSlots of the first variant's default cap
  size_t state_bytes_committed = 0, state_bytes_reserved = 0, state_bytes_budget = 0;
  size_t checkpoint_bytes = 0, token_log_bytes = 0;
  size_t request_bytes = 0, request_bytes_budget = 0;  // EngineOptions::request_memory
  int64_t request_refusals = 0;                        // for want of it
  PrefixStats prefixes;
  ConstraintStats constraints;
  HostStats host;
  RowCounts row_seconds = {};            // what a row of each kind takes, as far as is known
  int64_t live_slots = 0;                // summed over sessions
  size_t equivalent_kv_cache_bytes = 0;  // bytes that a KV cache of these positions would need
  std::optional<kernels::GpuInfo> gpu;   // at the time of the call; none without a GPU
};

struct EngineConfig {
  EngineModel model;
  EngineOptions options;
  EngineEvents events;
};

// Number of sessions with this slot cap that fit in memory; exact, as each reserves its maximum.
inline int SessionSlots(const model::StateLayout& layout, int32_t slot_cap,
                        size_t state_memory_bytes, int max_sessions) {
  const size_t each = std::max<size_t>(layout.bytes_cap(slot_cap), 1);
  return static_cast<int>(std::min(state_memory_bytes / each, static_cast<size_t>(max_sessions)));
}

}  // namespace ovq::engine
