#include "server/engine/scheduling/calibration.h"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <vector>

#include "model/sampler.h"

namespace ovq::engine {
namespace {

constexpr int64_t kMostStates = 8;
constexpr int64_t kMemoryPart = 4;   // of the states' memory, one of so many parts is used at most
constexpr int kMany = 32;            // draws and log-probabilities that are compared with few
constexpr double kLeastCost = 1e-3;  // of a kind: nothing is free, so that it can be learned
constexpr int kRounds = 2;           // the shorter counts: the other may have been interrupted
constexpr size_t kPromptGrowth = 4;  // each prompt is so many times as long as the one before
// The time for all: what so many iterations of one row take, but for small models this much.
constexpr double kIterations = 20;
constexpr absl::Duration kLeastTime = absl::Milliseconds(100);

class Calibration {
 public:
  Calibration(const EngineConfig& config, StatePool& pool, Executor& executor,
              BatchCostModel& costs)
      : config_(config),
        pool_(pool),
        executor_(executor),
        costs_(costs),
        sampler_(model::SamplingParams(), config.model.vocab_size),
        begin_(now()) {
    const model::StateLayout& layout = *config.model.variants.front().layout;
    int64_t most = config.options.max_batch_tokens;
    if (layout.has_unbounded()) most = std::min(most, layout.limits().max_unbounded_tokens);
    for (int64_t i = 0; i < most; ++i) {
      tokens_.push_back(static_cast<int32_t>(i % config.model.vocab_size));
    }
    AcquireStates(config.model.variants.front());
  }
  ~Calibration() {
    for (StateHandle& state : states_) pool_.Release(state);
  }
  Calibration(const Calibration&) = delete;
  Calibration& operator=(const Calibration&) = delete;

  void Run() {
    if (states_.empty()) return;
    for (const RowKind kind : {RowKind::kDraw, RowKind::kLogprob}) {
      costs_.SetRowCost(kind, std::max(costs_.row_costs()[static_cast<size_t>(kind)], kLeastCost));
    }
    const std::optional<absl::Duration> one = MeasureAnswers(1, 1, 0);
    if (!one || *one <= absl::ZeroDuration()) return;
    const absl::Duration most = config_.options.calibration;
    end_ = After(begin_, std::clamp(kIterations * *one, std::min(kLeastTime, most), most));
    Learn({1, 0, 0, 0}, one);
    const size_t n = states_.size();
    if (n > 1) Learn({static_cast<double>(n), 0, 0, 0}, MeasureAnswers(n, 1, 0));
    const auto draws = 2 * (1 + kRounds) * absl::ToChronoNanoseconds(*one);
    LearnPrompts(end_ - draws);
    LearnKind(RowKind::kDraw, *one, MeasureAnswers(1, kMany, 0), kMany - 1);
    const auto top = static_cast<int>(std::min<int64_t>(kMany, config_.model.vocab_size));
    LearnKind(RowKind::kLogprob, *one, MeasureAnswers(1, 1, top), top);
  }

 private:
  SteadyTime now() const { return config_.options.clock.steady(); }

  void AcquireStates(const ModelVariant& variant) {
    const size_t bytes = variant.layout->bytes_at(std::ssize(tokens_), variant.default_slot_cap);
    const auto room =
        static_cast<int64_t>(pool_.budget_bytes() / std::max<size_t>(bytes, 1)) / kMemoryPart;
    const int64_t n = std::min({kMostStates, std::ssize(tokens_), std::max<int64_t>(room, 1)});
    while (std::ssize(states_) < n) {
      absl::StatusOr<StateHandle> state =
          pool_.Acquire(*variant.layout, variant.default_slot_cap, bytes);
      if (!state.ok()) return;
      states_.push_back(*state);
    }
  }

  // The shortest of some iterations that read n_tokens of each of the first states, but for the
  // first, for which a device prepares. Unset where no second one ends in time, or one failed.
  // expected: what one takes, unset if nothing is known: then two are measured in any case.
  std::optional<absl::Duration> Measure(size_t n_states, size_t n_tokens,
                                        const BatchSequence& wanted,
                                        std::optional<absl::Duration> expected, SteadyTime end) {
    const bool known = expected.has_value();
    std::optional<absl::Duration> least;
    for (int round = 0; round <= kRounds; ++round) {
      const int at_least = round == 0 ? 2 : 1;
      if ((known || round > 1) && After(now(), at_least * *expected) > end) break;
      const std::optional<absl::Duration> took = RunOnce(n_states, n_tokens, wanted);
      if (!took) return std::nullopt;
      if (round > 0) least = std::min(least.value_or(*took), *took);
      expected = took;
    }
    return least;
  }
  std::optional<absl::Duration> MeasureAnswers(size_t n, int n_draws, int top_logprobs) {
    BatchSequence wanted;
    wanted.decoding = true;
    wanted.wants_draws.assign(
        static_cast<size_t>(n_draws),
        model::DrawRequest{.sampler = &sampler_, .top_logprobs = top_logprobs});
    std::optional<absl::Duration> expected;
    if (costs_.known()) expected = absl::Seconds(costs_.Seconds(static_cast<double>(n)));
    return Measure(n, 1, wanted, expected, end_);
  }
  std::optional<absl::Duration> RunOnce(size_t n_states, size_t n_tokens,
                                        const BatchSequence& wanted) {
    BatchRun run;
    for (size_t i = 0; i < n_states; ++i) {
      StateHandle& state = states_[i];
      const bool full = state.position + static_cast<int64_t>(n_tokens) > std::ssize(tokens_);
      if (full && !pool_.Restart(state).ok()) return std::nullopt;
      BatchSequence& sequence = run.sequences.emplace_back(wanted);
      sequence.state = &state;
      sequence.tokens = std::span<const int32_t>(tokens_).first(n_tokens);
    }
    const SteadyTime begin = now();
    executor_.Execute(run);
    const absl::Duration took = TimeBetween(begin, now());
    const bool failed = std::ranges::any_of(
        run.sequences, [](const BatchSequence& sequence) { return sequence.failure.has_value(); });
    return failed ? std::nullopt : std::optional(took);
  }

  void Learn(const RowCounts& rows, std::optional<absl::Duration> took) {
    if (took) costs_.Observe(costs_.Cost(rows), *took);
  }
  // one: what an answer's row took; more: with n more of the kind.
  void LearnKind(RowKind kind, absl::Duration one, std::optional<absl::Duration> more, int n) {
    if (!more || n <= 0 || one <= absl::ZeroDuration()) return;
    costs_.SetRowCost(kind, std::max(absl::FDivDuration(*more - one, one) / n, kLeastCost));
  }
  // Rows of a prompt cost what answers do whose iteration takes as long. Longer prompts say what
  // iterations of larger cost take.
  void LearnPrompts(SteadyTime end) {
    const size_t shortest = states_.size();
    for (size_t n = shortest; n <= tokens_.size(); n *= kPromptGrowth) {
      const RowCounts rows = {0, static_cast<double>(n), 0, 0};
      BatchSequence wanted;
      wanted.wants_check = true;
      const std::optional<absl::Duration> took =
          Measure(1, n, wanted, absl::Seconds(costs_.Seconds(costs_.Cost(rows))), end);
      if (!took || *took <= absl::ZeroDuration()) return;
      if (n > shortest) {
        Learn(rows, took);
      } else {
        const double seconds = absl::ToDoubleSeconds(*took), one = costs_.Seconds(1);
        const double cost = n == 1 ? seconds / one : costs_.Reach(seconds) / static_cast<double>(n);
        costs_.SetRowCost(RowKind::kPrompt, cost);
      }
    }
  }

  const EngineConfig& config_;
  StatePool& pool_;
  Executor& executor_;
  BatchCostModel& costs_;
  const model::Sampler sampler_;
  const SteadyTime begin_;
  SteadyTime end_ = kNever;
  std::vector<int32_t> tokens_;  // of the longest prompt
  std::vector<StateHandle> states_;
};

}  // namespace

void Calibrate(const EngineConfig& config, StatePool& pool, Executor& executor,
               BatchCostModel& costs) {
  Calibration(config, pool, executor, costs).Run();
}

}  // namespace ovq::engine
