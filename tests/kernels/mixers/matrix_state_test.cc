#include "kernels/mixers/recurrent/matrix_state.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tests/kernels/mixers/recurrent_util.h"

namespace ovq::kernels::test {
namespace {

class MatrixStateTargets : public TargetTest {};
INSTANTIATE_TEST_SUITE_P(, MatrixStateTargets, testing::ValuesIn(Targets()), TargetName);

// Rules of the recurrence, and whether every key channel has its decay.
constexpr std::pair<StateRule, bool> kRules[] = {
    {StateRule::kDelta, false}, {StateRule::kDelta, true}, {StateRule::kAdd, false}};

// The place of a state that has the matrices alone.
StatePlace MatrixPlace(int64_t n_heads, int64_t key_dim, int64_t value_dim) {
  MixerState state;
  state.fixed = StateFields({MatrixStateField(n_heads, key_dim, value_dim)});
  return LayerState().FixedPlace(state, 0);
}

struct StateCase {
  StateRule rule;
  int key_dim, value_dim;
  bool decays_keys = false;
  static constexpr int kHeads = 4, kKeyHeads = 2;
  int64_t decays() const { return int64_t{kHeads} * (decays_keys ? key_dim : 1); }  // of a token
  int64_t stride() const { return 2 * kKeyHeads * key_dim + kHeads * value_dim + 1; }
  size_t elements() const {
    return static_cast<size_t>(kHeads * StateColumnBlocks(value_dim) * key_dim * kStateColumns);
  }
  // A random state, with zeros past value_dim.
  std::vector<float> State(uint64_t seed) const {
    std::vector<float> state = RandomNormal(elements(), seed);
    for (size_t i = 0; i < state.size(); ++i) {
      const int64_t block = static_cast<int64_t>(i) / (key_dim * kStateColumns);
      const int64_t column = block % StateColumnBlocks(value_dim) * kStateColumns +
                             static_cast<int64_t>(i) % kStateColumns;
      if (column >= value_dim) state[i] = 0;
    }
    return state;
  }
};

// tokens [n_tokens][stride]: unit queries and keys, then values; decay and beta are in (0, 1).
struct StateInput {
  std::vector<float> tokens, decay, beta, skip;
};
StateInput MakeStateInput(const StateCase& c, int n_tokens) {
  const auto n = static_cast<size_t>(n_tokens);
  StateInput input = {RandomNormal(n * static_cast<size_t>(c.stride()), 1),
                      Gates(n * static_cast<size_t>(c.decays()), 2),
                      Gates(n * StateCase::kHeads, 3),
                      RandomNormal(static_cast<size_t>(StateCase::kHeads * c.value_dim), 4)};
  for (int64_t token = 0; token < n_tokens; ++token) {
    const auto begin = input.tokens.begin() + token * c.stride();
    const std::vector<float> heads(begin, begin + 2 * StateCase::kKeyHeads * c.key_dim);
    std::ranges::copy(UnitVectors(heads, static_cast<size_t>(c.key_dim)), begin);
  }
  return input;
}

// Runs the tokens from first_token on.
Result RunStates(DeviceContext& context, const StateCase& c, const Sequences& sequences,
                 const StateInput& input, int first_token = 0) {
  const DeviceArray<float> tokens(context, input.tokens), decay(context, input.decay),
      beta(context, input.beta), skip(context, input.skip);
  const float* q = tokens.data() + first_token * c.stride();
  return RunBatch(context, sequences, [&](const BatchSequences& seqs) {
    const DeviceArray<float> y(
        context, static_cast<size_t>(seqs.n_tokens() * StateCase::kHeads * c.value_dim));
    AdvanceStates(context, seqs,
                  {.rule = c.rule,
                   .n_heads = StateCase::kHeads,
                   .n_key_heads = StateCase::kKeyHeads,
                   .key_dim = c.key_dim,
                   .value_dim = c.value_dim,
                   .q = q,
                   .k = q + StateCase::kKeyHeads * c.key_dim,
                   .v = q + 2 * StateCase::kKeyHeads * c.key_dim,
                   .stride = c.stride(),
                   .decay = decay.data() + first_token * c.decays(),
                   .beta = beta.data() + first_token * StateCase::kHeads,
                   .skip = c.rule == StateRule::kAdd ? skip.data() : nullptr,
                   .states = MatrixPlace(StateCase::kHeads, c.key_dim, c.value_dim),
                   .y = y.data(),
                   .decays_keys = c.decays_keys});
    return y.Read();
  });
}

TEST(MatrixStateTargetsReference, AdvancesStatesByHand) {
  auto context = MakeContext(Device::kReference);
  std::vector<float> state(4 * kStateColumns), tokens = {1, 1, 2, 2, 10, 20, 30, 40};
  for (int head = 0; head < 4; ++head) state[static_cast<size_t>(head * kStateColumns)] = 8;
  // key_dim = 1: S is a number, 8 at first. Head h uses key head h / 2: k = 2, q = 1.
  const auto run = [&](StateRule rule) {
    const std::vector<float> quarter(4, 0.25f), half(4, 0.5f), skip = {1, 0, 0, 0};
    return RunBatch(*context, {{1}, {3}, {state}},
                    [&](const BatchSequences& seqs) {
                      std::vector<float> y(4);
                      AdvanceStates(*context, seqs,
                                    {rule, 4, 2, 1, 1, tokens.data(), tokens.data() + 2,
                                     tokens.data() + 4, 8, half.data(), quarter.data(), skip.data(),
                                     MatrixPlace(4, 1, 1), y.data()});
                      return y;
                    })
        .y;
  };
  // 4 + 2 (10 - 2 4) / 4 = 5, and 10 skipped; 4 + 2 (20 - 8) / 4 = 10; ...
  EXPECT_EQ(run(StateRule::kDelta), (std::vector<float>{15, 10, 15, 20}));
  EXPECT_EQ(run(StateRule::kAdd), (std::vector<float>{4 + 5 + 10, 4 + 10, 4 + 15, 4 + 20}));
}

// Elements of S and v are at most 5; keys and queries have unit length. A chain of key_dim products
// is as large as the column, 5 sqrt(key_dim); its roundings have random signs and add up like their
// root. A token has three chains, whose errors fade over later tokens by the decay and the
// correction.
TEST_P(MatrixStateTargets, AdvancesStatesAsTheReference) {
  const bool on_cuda = GetParam().device == Device::kCuda;
  for (int key_dim : {1, 5, 16, 33, 70, 130, 300}) {
    for (int value_dim : {1, 24, 32, 70}) {
      if (on_cuda && key_dim > 100 && value_dim > 24) continue;  // the host executor is slow
      for (const auto& [rule, decays_keys] : kRules) {
        const StateCase c = {rule, key_dim, value_dim, decays_keys};
        const StateInput input = MakeStateInput(c, 11);
        const Sequences sequences = {{1, 7, 3}, {0, 9, 4}, {c.State(5), c.State(6), c.State(7)}};
        const Result expected = RunStates(*ref_, c, sequences, input);
        const Result actual = RunStates(*context_, c, sequences, input);
        const double tolerance = 3 * 5 * (key_dim + 4) * kRoundF32;
        const std::string what =
            absl::StrCat("keys ", key_dim, " values ", value_dim, " rule ", static_cast<int>(rule),
                         decays_keys ? " with decays of keys" : "");
        AssertClose(actual.y, expected.y, tolerance, what);
        for (size_t s = 0; s < 3; ++s) {
          AssertClose(actual.states[s], expected.states[s], tolerance, what);
        }
      }
    }
  }
}

TEST_P(MatrixStateTargets, SplitsGiveTheSameStates) {
  for (const auto& [rule, decays_keys] : kRules) {
    const StateCase c = {rule, 20, 40, decays_keys};
    const StateInput input = MakeStateInput(c, 9);
    const std::vector<float> start = c.State(5);
    const Result whole = RunStates(*context_, c, {{9}, {0}, {start}}, input);
    for (int32_t split = 1; split < 9; ++split) {
      const Result head = RunStates(*context_, c, {{split}, {0}, {start}}, input);
      const Result tail =
          RunStates(*context_, c, {{9 - split}, {split}, {head.states[0]}}, input, split);
      std::vector<float> joined = head.y;
      joined.insert(joined.end(), tail.y.begin(), tail.y.end());
      AssertSameBits(joined, whole.y, absl::StrCat("split at ", split));
      AssertSameBits(tail.states[0], whole.states[0], absl::StrCat("split at ", split));
    }
  }
}

}  // namespace
}  // namespace ovq::kernels::test
