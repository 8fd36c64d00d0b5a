#include "server/engine/common/matcher_cache.h"

#include <utility>

namespace ovq::engine {

template <class Use>
auto MatcherCache::With(const AnswerConstraint& constraint, Use use) {
  const SteadyTime begin = clock_.steady();
  const auto found = by_form_.find(constraint.digest());
  if (found == by_form_.end()) {
    entries_.push_front({.digest = constraint.digest(),
                         .matcher = std::make_unique<constraint::Matcher>(
                             constraint.automaton(), vocabulary_, budget_ / kMostShare)});
    by_form_.emplace(entries_.front().digest, entries_.begin());
  } else {
    entries_.splice(entries_.begin(), entries_, found->second);
  }
  Entry& entry = entries_.front();
  auto result = use(*entry.matcher);
  const size_t now = entry.matcher->bytes() + entry.digest.size();
  bytes_ += now - entry.bytes;
  entry.bytes = now;
  while (bytes_ > budget_ && entries_.size() > 1) {
    bytes_ -= entries_.back().bytes;
    by_form_.erase(entries_.back().digest);
    entries_.pop_back();
  }
  stats_.time += TimeBetween(begin, clock_.steady());
  return result;
}

constraint::Place MatcherCache::Begin(const AnswerConstraint& constraint) {
  return With(constraint, [](constraint::Matcher& matcher) { return matcher.Begin(); });
}

std::optional<constraint::Place> MatcherCache::Advance(const AnswerConstraint& constraint,
                                                       const constraint::Place& place,
                                                       int32_t token) {
  return With(constraint,
              [&](constraint::Matcher& matcher) { return matcher.Advance(place, token); });
}

std::shared_ptr<const constraint::TokenMask> MatcherCache::Mask(const AnswerConstraint& constraint,
                                                                const constraint::Place& place,
                                                                bool& exhausted) {
  ++stats_.masks;
  return With(constraint, [&](constraint::Matcher& matcher) {
    std::shared_ptr<const constraint::TokenMask> mask = matcher.Mask(place);
    exhausted = matcher.exhausted();
    return mask;
  });
}

ConstraintStats MatcherCache::stats() const {
  ConstraintStats stats = stats_;
  stats.bytes = bytes_;
  stats.budget_bytes = budget_;
  stats.matchers = static_cast<int64_t>(entries_.size());
  return stats;
}

}  // namespace ovq::engine
