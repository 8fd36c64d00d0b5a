// MatcherCache: the places and masks of all constraints in use, within one budget of memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>

#include "base/clock.h"
#include "model/constraint/matcher.h"
#include "server/engine/common/answer_constraint.h"
#include "server/engine/common/engine_config.h"

namespace ovq::engine {

// Keeps a matcher for each form, the last used ones; equal forms share one. A matcher may go at any
// time: places do not need the one that made them. Engine thread only.
class MatcherCache {
 public:
  // vocabulary: null for a model whose calls have no constraints.
  MatcherCache(std::shared_ptr<const constraint::Vocabulary> vocabulary, size_t budget_bytes,
               Clock clock)
      : vocabulary_(std::move(vocabulary)), budget_(budget_bytes), clock_(std::move(clock)) {}

  // They do what Matcher's functions of these names do.
  constraint::Place Begin(const AnswerConstraint& constraint);
  std::optional<constraint::Place> Advance(const AnswerConstraint& constraint,
                                           const constraint::Place& place, int32_t token);
  std::shared_ptr<const constraint::TokenMask> Mask(const AnswerConstraint& constraint,
                                                    const constraint::Place& place,
                                                    bool& exhausted);
  void CountForced(int64_t n_tokens) { stats_.forced_tokens += n_tokens; }
  ConstraintStats stats() const;
  absl::Duration time() const { return stats_.time; }  // spent so far

 private:
  // One form's matcher never fills more of the budget than this.
  static constexpr size_t kMostShare = 4;
  struct Entry {
    std::string digest;  // AnswerConstraint::digest
    std::unique_ptr<constraint::Matcher> matcher;
    size_t bytes = 0;  // when it was used last
  };

  // Calls use(matcher), then drops the matchers that were not used for longest while all together
  // exceed the budget.
  template <class Use>
  auto With(const AnswerConstraint& constraint, Use use);

  const std::shared_ptr<const constraint::Vocabulary> vocabulary_;
  const size_t budget_;
  const Clock clock_;
  std::list<Entry> entries_;                                                  // the last used first
  std::unordered_map<std::string_view, std::list<Entry>::iterator> by_form_;  // keys: Entry::digest
  size_t bytes_ = 0;                                                          // of all entries
  ConstraintStats stats_;
};

}  // namespace ovq::engine
