// FormProgress: where an answer stands in the form that its constraint asks for.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "kernels/ops/sample.h"
#include "server/engine/common/answer_constraint.h"
#include "server/engine/common/matcher_cache.h"

namespace ovq::engine {

// Tokens that are not drawn though the form allows them, rising: `early` for the first n_early
// tokens of an answer, then `always`.
struct FormBans {
  std::span<const int32_t> early, always;
  int64_t n_early = 0;

  std::span<const int32_t> After(int64_t n_drawn) const {
    return n_drawn < n_early ? early : always;
  }
};

// Engine thread only.
class FormProgress {
 public:
  // has_end: a form that is complete is followed by an end token, where one may be drawn.
  FormProgress(std::shared_ptr<const AnswerConstraint> constraint, MatcherCache& matchers,
               bool has_end);

  // Moves to where an earlier answer ended. FailedPrecondition if the form has no such text.
  absl::Status GoOn(const UnfinishedAnswer& earlier);
  // Moves on by a token that the mask allows. ResourceExhausted where the form is too ambiguous.
  absl::Status Add(int32_t token);
  // Whether no token follows the n_drawn ones of the answer: the form is complete, allows banned
  // tokens alone, or is too ambiguous.
  bool Ends(const FormBans& bans, int64_t n_drawn) const;
  // The only token that may follow.
  std::optional<int32_t> Forced(const FormBans& bans, int64_t n_drawn) const;
  // Moves on by a token, but not where the answer would end then. False: it stays.
  bool AddUnlessEnd(int32_t token, const FormBans& bans, int64_t n_drawn);
  // The number of first drafted tokens that the form allows; masks() has one behind each then.
  int64_t Draft(std::span<const int32_t> drafted);

  // Time that the form has taken a token lately, at least that of the last one.
  absl::Duration token_time() const { return token_time_; }
  bool may_end() const { return place_.may_end() && !exhausted_; }
  const constraint::Place& place() const { return place_; }
  // The masks of the next token and of those behind the last Draft. Valid until the place changes.
  std::span<const kernels::TokenMaskBits> masks() const { return bits_; }
  // The error where no token can follow though the form goes on: ResourceExhausted where it is too
  // ambiguous, else FailedPrecondition.
  absl::Status DeadEnd() const;

 private:
  class Meter;

  void SetPlace(constraint::Place place);

  const std::shared_ptr<const AnswerConstraint> constraint_;
  MatcherCache& matchers_;
  const bool has_end_;
  absl::Duration spent_, token_time_;  // spent_: since the last token
  constraint::Place place_;
  bool exhausted_ = false;  // place_ has no mask, as the grammar is too ambiguous there
  std::vector<std::shared_ptr<const constraint::TokenMask>> masks_;  // the first: of place_
  std::vector<kernels::TokenMaskBits> bits_;                         // of masks_
};

}  // namespace ovq::engine
