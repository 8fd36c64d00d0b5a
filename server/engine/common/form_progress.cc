#include "server/engine/common/form_progress.h"

#include <algorithm>
#include <utility>

namespace ovq::engine {
namespace {

// Whether the mask allows nothing but banned tokens.
bool LeavesNothing(const constraint::TokenMask& mask, std::span<const int32_t> banned) {
  if (mask.n_allowed > std::ssize(banned)) return false;
  return std::ranges::count_if(banned, [&](int32_t id) { return mask.Allows(id); }) ==
         mask.n_allowed;
}

absl::Status TooAmbiguous() {
  return absl::ResourceExhaustedError(
      "constraint: its grammar is so ambiguous that the answer could go on in too many ways");
}

bool IsComplete(const constraint::Place& place) { return place.may_end() && !place.may_go_on(); }

// Weight of a token in token_time, where those before it took longer.
constexpr double kNewToken = 0.25;

}  // namespace

// Adds what the matchers take while it lives to what the form has spent.
class FormProgress::Meter {
 public:
  explicit Meter(FormProgress& form) : form_(form), begin_(form.matchers_.time()) {}
  ~Meter() { form_.spent_ += form_.matchers_.time() - begin_; }
  Meter(const Meter&) = delete;
  Meter& operator=(const Meter&) = delete;

 private:
  FormProgress& form_;
  const absl::Duration begin_;
};

FormProgress::FormProgress(std::shared_ptr<const AnswerConstraint> constraint,
                           MatcherCache& matchers, bool has_end)
    : constraint_(std::move(constraint)),
      matchers_(matchers),
      has_end_(has_end),
      place_(matchers_.Begin(*constraint_)) {
  {
    const Meter meter(*this);
    SetPlace(place_);
  }
  token_time_ = std::exchange(spent_, absl::ZeroDuration());
}

void FormProgress::SetPlace(constraint::Place place) {
  place_ = std::move(place);
  masks_ = {matchers_.Mask(*constraint_, place_, exhausted_)};
  bits_.assign(1, masks_.front()->bits);
}

absl::Status FormProgress::GoOn(const UnfinishedAnswer& earlier) {
  std::optional<constraint::Place> place = earlier.place;
  if (!place) {
    place = matchers_.Begin(*constraint_);
    for (const int32_t token : earlier.tokens) {
      place = matchers_.Advance(*constraint_, *place, token);
      if (!place) {
        return absl::FailedPreconditionError(
            "constraint: what the session has of the answer is not of its form");
      }
    }
  }
  SetPlace(*std::move(place));
  return absl::OkStatus();
}

absl::Status FormProgress::Add(int32_t token) {
  {
    const Meter meter(*this);
    std::optional<constraint::Place> place = matchers_.Advance(*constraint_, place_, token);
    if (!place) return TooAmbiguous();
    SetPlace(*std::move(place));
  }
  const absl::Duration spent = std::exchange(spent_, absl::ZeroDuration());
  token_time_ = std::max(spent, token_time_ + kNewToken * (spent - token_time_));
  return absl::OkStatus();
}

bool FormProgress::Ends(const FormBans& bans, int64_t n_drawn) const {
  return exhausted_ || (IsComplete(place_) && !has_end_) ||
         LeavesNothing(*masks_.front(), bans.After(n_drawn));
}

std::optional<int32_t> FormProgress::Forced(const FormBans& bans, int64_t n_drawn) const {
  const constraint::TokenMask& mask = *masks_.front();
  const bool forced =
      mask.n_allowed == 1 && !std::ranges::binary_search(bans.After(n_drawn), mask.only);
  return forced ? std::optional(mask.only) : std::nullopt;
}

bool FormProgress::AddUnlessEnd(int32_t token, const FormBans& bans, int64_t n_drawn) {
  const constraint::Place before = place_;
  if (Add(token).ok() && !Ends(bans, n_drawn)) return true;
  SetPlace(before);
  return false;
}

int64_t FormProgress::Draft(std::span<const int32_t> drafted) {
  const Meter meter(*this);
  masks_.resize(1);
  bits_.resize(1);
  std::optional<constraint::Place> place = place_;
  for (const int32_t token : drafted) {
    if (!masks_.back()->Allows(token)) break;
    place = matchers_.Advance(*constraint_, *place, token);
    if (!place || IsComplete(*place)) break;
    bool exhausted = false;
    std::shared_ptr<const constraint::TokenMask> mask =
        matchers_.Mask(*constraint_, *place, exhausted);
    if (mask->n_allowed == 0) break;
    masks_.push_back(std::move(mask));
    bits_.push_back(masks_.back()->bits);
  }
  return std::ssize(masks_) - 1;
}

absl::Status FormProgress::DeadEnd() const {
  if (exhausted_) return TooAmbiguous();
  return absl::FailedPreconditionError(
      "constraint: no token that may be drawn goes on with the answer in its form");
}

}  // namespace ovq::engine
