// Which rows a step has: how much compute time it may take, and how that is shared.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "absl/time/time.h"
#include "server/engine/answer.h"
#include "server/engine/state_pool.h"

namespace ovq {

// What a sequence brings to a step.
struct StepSequence {
  StateHandle* state = nullptr;
  std::span<const int32_t> tokens = {};  // to consume next, at least one
  bool decoding = false;                 // its one token was drawn; else tokens of a prompt
  bool paused = false;                   // its reader is behind: no row in this step
  int64_t order = 0;             // of admission: its request's, whose sequences are neighbours
  int64_t consumed = 0;          // of its request's tokens
  std::string_view client = {};  // CallRequest::client
  double weight = 1;             // of the client
  double row_cost = 1;           // of a row, in rows without a state
  // Each draws a token from the logits of the last of the tokens.
  std::span<const std::unique_ptr<Completion>> draws = {};
  // What may follow its one token (decoding): rows of a step that nobody else wants may try it.
  DraftTokens guess = {};
  // Every token's row is scored: the log-probability of the token after it, if there is one, and of
  // so many best.
  std::optional<int> score_top = {};
  // Of the last of the tokens it is looked whether the model's output is a number.
  bool checked = false;
};

struct PlanItem {
  int id;  // of the sequence: its index
  int32_t n_rows;
  int32_t n_drafted = 0;  // rows more, of its guess
  bool operator==(const PlanItem&) const = default;
};

// How long a step takes, by the cost of its rows; learned from steps. A step never takes less for
// more rows. What more rows take is at most as many times what fewer take, where that is seen
// later; not the other way round: who slows down the machine, by its memory or its own threads,
// would raise what everybody's row seems to take, and with it the part that it has of a step. With
// nothing learned a step takes as long as each of its rows alone.
class BatchCostModel {
 public:
  // target: see Target; by default as many times what the answers take alone.
  explicit BatchCostModel(std::optional<absl::Duration> target = {}) : target_(target) {}

  void Observe(double cost, absl::Duration took);
  bool known() const { return known_; }
  double Seconds(double cost) const;   // cost: at least 1
  double Reach(double seconds) const;  // the largest cost that takes no longer; at least 1
  // How long a step may take in which answers of this cost wait for what others have to read.
  double Target(double answers) const;

 private:
  static constexpr int kPoints = 32;  // of costs 1, 2, 4, ...
  struct Point {
    double seconds = 0;
    double seen = 0;  // so many steps of about this cost
  };
  void FillGaps();  // points that were not seen, from their neighbours

  std::optional<absl::Duration> target_;
  std::array<Point, kPoints> points_;
  bool known_ = false;
};

// A client alone has all of a step. Where several want rows, none waits longer for its tokens than
// if each had the machine for its part of the time: the step ends before the part of whoever has
// least to do is used up, and a client's part counts for all its calls together, however many they
// are. What a client leaves of its part is the others'. So a prompt of any length, 64 completions
// and a score of every token slow another's answer down alike.
//
// Within a client, calls that decode share alike and come before its prompts, which get a part of
// 1 / kPrefillShare all the same, so that long answers do not keep new ones out. Prompts are read
// in turns of kPromptTurn tokens, oldest first.
//
// Parts of less than a row are rounded by turns: pass the number of the choice. costs: null for a
// step without a bound in time. A step of several memories' turns gets the time of one. A pure
// function.
std::vector<PlanItem> PlanBatch(std::span<const StepSequence> sequences, int32_t max_rows,
                                int64_t turn, const BatchCostModel* costs = nullptr,
                                const StateLayout* memory = nullptr, int n_memories = 1);

// Adds rows of guesses to a plan: those most likely to be right, as many as let the answers gain
// most tokens in the time that the step then takes, and none where it is not sure to be a gain.
// Whoever has no guess in the step, or one that is not worth as much, waits no longer for it.
// costs: null for steps that take no time. A pure function.
void PlanDrafts(std::span<const StepSequence> sequences, int32_t max_rows,
                const BatchCostModel* costs, std::vector<PlanItem>& plan);
// A step's time is known about as well.
inline constexpr double kDraftMargin = 1.02;

// Of the time that the promise allows a step is filled so far: answers are also written, and a step
// beside others takes longer than it took alone.
inline constexpr double kFilled = 0.75;

// With prompts beside answers a step takes no longer than this (--target-step-time), or so many
// times what the answers take alone: nobody who watches an answer sees it stand still. Few answers
// count as so many, or prompts would be read in parts of a few rows, which takes longer for all.
inline constexpr double kTargetSteps = 3;
inline constexpr double kTargetAnswers = 8;

// One of a row's best log-probabilities takes as long as reading so many bytes more (16 answers
// with 258 each beside 16 with none, models/python-bytes: a fifth to a third more a token).
inline constexpr size_t kLogprobCostBytes = 8 << 10;

inline constexpr int64_t kPromptTurn = 512;
inline constexpr double kPrefillShare = 8;

// However few want rows, a step is over after this time, so that who comes meanwhile is soon in
// one; or, of a model that takes long for a row, after so many times what one row takes.
inline constexpr double kLongStepSeconds = 0.5;
inline constexpr double kLongStepRows = 8;

}  // namespace ovq
