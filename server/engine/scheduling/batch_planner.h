// Chooses the tokens of each batch: how much time an iteration may take, and how clients share it.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "absl/time/time.h"
#include "base/clock.h"
#include "model/state_layout.h"
#include "server/engine/common/host_time.h"
#include "server/engine/common/request.h"

namespace ovq::engine {

// A sequence that wants tokens of the next batch.
struct BatchCandidate {
  const model::StateLayout* layout = nullptr;  // of its model variant
  int64_t n_tokens = 1;   // tokens to consume next: 1 if decoding, otherwise those of a prompt
  bool decoding = false;  // its one token was drawn
  bool paused = false;    // its reader is behind: it gets no token
  int64_t order = 0;      // admission order of its request, whose sequences are neighbors
  int64_t consumed = 0;   // tokens of its request consumed so far
  std::string_view client = {};  // CallRequest::client
  double weight = 1;             // of the client
  RowCounts rows = {1};          // of each kind, for a token
  double token_cost = 1;         // cost of a token in the batch, in answers' rows without a state
  // Seconds of a token that the batch does not take: for the masks of its form.
  double token_seconds = 0;
  // Probability of each token that may follow a decoding sequence's token, forced or drafted, to be
  // right if those before it are.
  std::span<const float> draft_probabilities = {};

  // The sequence itself, of which planning needs nothing more.
  Request* request = nullptr;
  RunningAnswer* answer = nullptr;  // null during prefill
  StateHandle* state = nullptr;
  // To consume next; with those that are forced behind a decoding sequence's token.
  std::span<const int32_t> tokens = {};
  std::span<const int32_t> drafted = {};  // tokens that may follow these
};

// The part of one candidate in a batch.
struct PlanItem {
  int candidate;  // index
  int32_t n_tokens;
  int32_t n_drafted = 0;  // tokens in addition that are forced, then drafted
  bool operator==(const PlanItem&) const = default;
};

// Predicts the time of an iteration from the cost of its tokens, and learns from iterations. More
// tokens never take less time. A correction for many tokens limits what fewer tokens are predicted
// to take only from above, not from below: otherwise a client that slows the machine down, by its
// memory or its own threads, would raise the predicted time of everybody's tokens, and with it its
// own part of an iteration. Until something is learned each token takes the same time. Costs are
// counted in answers' rows; what a row of another kind costs is learned, too.
class BatchCostModel {
 public:
  // target: see Target; without one kTargetIterations, and at least `least`.
  explicit BatchCostModel(std::optional<absl::Duration> target = {},
                          absl::Duration least = absl::ZeroDuration(),
                          const RowCounts& row_costs = {1, 1, 0, 0})
      : target_(target), least_(least), row_costs_(row_costs), measured_row_costs_(row_costs) {}

  void Observe(double cost, absl::Duration took);
  // Learns from an iteration of these rows, whose states cost `other`.
  void Observe(const RowCounts& rows, double other, absl::Duration took);
  double Cost(const RowCounts& rows) const;
  // Sets what a row of a kind other than kAnswer costs, as it was measured.
  void SetRowCost(RowKind kind, double cost);
  const RowCounts& row_costs() const { return row_costs_; }
  bool known() const { return known_; }  // anything
  double Seconds(double cost) const;     // cost: at least 1
  double Reach(double seconds) const;    // the largest cost that takes no longer; at least 1
  // Seconds that an iteration may take in which answers wait beside prompts. answers: their cost.
  // beside: seconds of theirs that the batch does not take.
  double Target(double answers, double beside) const;

 private:
  static constexpr int kPoints = 32;  // of costs 1, 2, 4, ...
  struct Point {
    double seconds = 0;
    double seen = 0;  // number of iterations of about this cost
  };
  void FillGaps();  // interpolates points without observations from their neighbors

  std::optional<absl::Duration> target_;
  absl::Duration least_;
  RowCounts row_costs_, measured_row_costs_;
  std::array<Point, kPoints> points_;
  bool known_ = false;
};

// Chooses the tokens of one batch. A client alone has all of a batch. Where several clients want
// tokens, none waits longer for its tokens than if each had the machine for its part of the time:
// the iteration ends before the part of the client with the least work is used up. A client's part
// counts for all its calls together, however many they are, and the other clients share what it
// leaves. So a prompt of any length, 64 answers, slow forms and a score of every token slow another
// client's answer down alike.
//
// Within a client, calls that decode share alike and come before its prompts, which get a part of
// 1 / kPrefillShare all the same, so that long answers do not keep new ones out. Prompts are
// prefilled in rounds of kPromptRound tokens, oldest first.
//
// Debts for the host's work are taken from the clients' parts, kMostForDebt of each at most:
// only what each owes beyond the one of the candidates' clients that owes least, so clients alike
// are served as if there were no debts. Clients that want no tokens pay by the time that would be
// theirs. Those that want one token, as a single answer does, get it, and what they would have paid
// is forgiven: most of what an answer owes is for writing its tokens, of which a stream beside a
// client with long prompts has more than that one. Sets HostDebt::paid. debts: sorted by client.
//
// Parts of less than a token are rounded to whole ones in some rounds: `round` is the number of the
// choice. costs: null for a batch without a bound in time. layout: the variant that the batch is
// for (null: all candidates have the same one); each of n_variants gets an equal part of the time.
// A function of its arguments alone.
std::vector<PlanItem> PlanBatch(std::span<const BatchCandidate> candidates, int32_t max_tokens,
                                int64_t round, const BatchCostModel* costs = nullptr,
                                const model::StateLayout* layout = nullptr, int n_variants = 1,
                                std::span<HostDebt> debts = {});

// The part of its tokens that a client in debt goes without: who shares a key with callers that
// keep the host busy still gets the rest.
inline constexpr double kMostForDebt = 7.0 / 8;

// Adds drafted tokens to a plan: the likeliest first, as many as give the answers most tokens per
// time, and none unless the gain is sure. An answer without drafts in the batch, or with worse
// ones, does not wait longer for it. costs: null if all batches take the same time. A pure
// function.
void PlanDrafts(std::span<const BatchCandidate> candidates, int32_t max_tokens,
                const BatchCostModel* costs, std::vector<PlanItem>& plan);
// Iteration times are predicted to about 2%.
inline constexpr double kDraftMargin = 1.02;

// The part of the allowed time that an iteration fills: answers are also written, and an iteration
// beside others takes longer than it took alone.
inline constexpr double kFilled = 0.75;

// With prompts beside answers an iteration takes no longer than --target-step-time or, by default,
// this many times what the answers take alone, so that nobody who watches an answer sees it stand
// still. Fewer answers than kTargetAnswers count as that many: otherwise prompts would be prefilled
// a few tokens at a time, which takes longer for all.
inline constexpr double kTargetIterations = 3;
inline constexpr double kTargetAnswers = 8;

inline constexpr int64_t kPromptRound = 512;
inline constexpr double kPrefillShare = 8;

// The longest time of an iteration however few want tokens, so that new calls soon join one; or,
// for a model that is slow, the time of this many tokens.
inline constexpr double kLongBatchSeconds = 0.5;
inline constexpr double kLongBatchTokens = 8;

// Chooses batch after batch, and learns what they take. Engine thread only.
class BatchPlanner {
 public:
  explicit BatchPlanner(const EngineConfig& config)
      : max_tokens_(config.options.max_batch_tokens),
        bounds_time_(config.model.weight_bytes > 0),
        host_time_(config.options.host_time),
        quotas_(config.options.quotas),
        costs_(config.options.target_step_time, config.options.least_step_time,
               config.options.row_costs) {}

  // Chooses tokens of the candidates (PlanBatch), all of one model variant; the variants alternate.
  void Choose(std::span<const BatchCandidate> candidates, SteadyTime now);
  // The last choice, if it may stand for one more iteration, otherwise empty. Where all chosen
  // sequences decode, several iterations run the same tokens' sequences, for a time that is short
  // beside the wait of many sequences for their tokens: looking through a thousand takes as long as
  // a small iteration, and a state that runs for a while stays in the caches.
  std::span<const PlanItem> Standing(SteadyTime now) const;
  void DropStanding() { iterations_left_ = 0; }
  // The cost of rows, in answers' rows.
  double Cost(const RowCounts& rows) const { return costs_.Cost(rows); }
  // The last choice, with drafted tokens added, as the plan of the next iteration, which pays what
  // the choice takes from those in debt.
  std::vector<PlanItem> Plan(std::span<const BatchCandidate> candidates);
  // Learns from an iteration that ran this plan. took: results included, without what the plan has
  // as token_seconds.
  void Observe(std::span<const BatchCandidate> candidates, std::span<const PlanItem> plan,
               absl::Duration took);
  BatchCostModel& costs() { return costs_; }
  RowCounts row_seconds() const;  // EngineStats::row_seconds

 private:
  static constexpr auto kStandingTime = std::chrono::microseconds(10);  // per candidate
  static constexpr int kStandingIterations = 32;                        // at most

  // Null if iterations have no bound in time.
  const BatchCostModel* bounds() const { return bounds_time_ ? &costs_ : nullptr; }

  const int32_t max_tokens_;
  const bool bounds_time_;
  const std::shared_ptr<HostTime> host_time_;   // null: nobody is in debt
  const std::shared_ptr<TenantQuotas> quotas_;  // null: all clients weigh alike
  BatchCostModel costs_;
  int64_t n_choices_ = 0;
  std::vector<PlanItem> choice_;
  std::vector<HostDebt> debts_;  // as the choice found them, with what each iteration of it pays
  int iterations_left_ = 0;      // for which the choice may stand
  SteadyTime stands_until_;
};

}  // namespace ovq::engine
