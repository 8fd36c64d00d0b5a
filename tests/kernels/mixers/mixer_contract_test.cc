// Every registered mixer on every device keeps the same promises: style of the state, identity of
// bytes under any split, batch, thread count and place in memory, agreement with the reference.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "tests/kernels/mixers/mixer_test_util.h"

namespace ovq::kernels::test {
namespace {

template <class T>
bool SameBytes(const std::vector<T>& a, const std::vector<T>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0;
}

class MixerContract : public MixerCaseTest {
 protected:
  void SetUp() override {
    const std::string missing = WhyNoDevice(GetParam().device);
    if (!missing.empty()) GTEST_SKIP() << missing;
  }

  // Slow devices' tokens are still more than the longest chunk and window of the cases.
  static bool slow() { return IsSlow(GetParam().device); }
  // Only CUDA's batches hold sequences without a state, which fill a recorded batch up.
  static bool on_cuda() { return GetParam().device == Device::kCuda; }
  static int n_tokens() { return slow() ? 200 : 333; }
  static MixerInstance Make(int n_threads = 1) {
    return {GetParam(), GetParam().device, n_threads, n_tokens()};
  }

  static std::vector<int64_t> EveryToken(int n) {
    std::vector<int64_t> cuts(static_cast<size_t>(n) - 1);
    std::iota(cuts.begin(), cuts.end(), 1);
    return cuts;
  }
  static std::vector<int64_t> RandomCuts(uint32_t seed) {
    std::mt19937 random(seed);
    std::vector<int64_t> cuts;
    for (int64_t at = 0; (at += 1 + static_cast<int64_t>(random() % 90)) < n_tokens();) {
      cuts.push_back(at);
    }
    return cuts;
  }
  // Restores UndoExtents of the tokens in `state` from `before`; returns the number of bytes.
  static size_t PutBack(const MixerInstance& instance, const TokenRange& tokens,
                        const std::vector<std::byte>& before, std::vector<std::byte>& state) {
    size_t named = 0;
    for (const StateExtent& extent : instance.mixer().UndoExtents(instance.where(), tokens)) {
      for (size_t i = 0; i < extent.pieces; ++i) {
        const size_t at = extent.offset + i * extent.stride;
        Check(at + extent.bytes <= before.size(), "bytes of the state");
        std::copy_n(before.begin() + static_cast<std::ptrdiff_t>(at), extent.bytes,
                    state.begin() + static_cast<std::ptrdiff_t>(at));
      }
      named += extent.total_bytes();
    }
    return named;
  }
  const std::vector<float> x_ = RandomRows(n_tokens(), 11);
};

TEST_P(MixerContract, AnySplitGivesTheSameBytes) {
  MixerInstance instance = Make();
  MixerSession whole = instance.NewSession();
  const std::vector<float> expected = instance.Run(whole, x_, {});
  EXPECT_TRUE(whole.GuardsIntact());
  std::vector<std::vector<int64_t>> splits = {EveryToken(n_tokens()), RandomCuts(1)};
  if (!slow()) splits.push_back(RandomCuts(2));
  for (const auto& cuts : splits) {
    MixerSession session = instance.NewSession();
    EXPECT_TRUE(SameBytes(instance.Run(session, x_, cuts), expected));
    EXPECT_TRUE(SameBytes(session.bytes(), whole.bytes()));
    EXPECT_TRUE(session.GuardsIntact());
  }
}

TEST_P(MixerContract, CompanyAndThreadsDoNotMatter) {
  MixerInstance alone = Make();
  MixerSession expected_session = alone.NewSession();
  const std::vector<float> expected = alone.Run(expected_session, x_, {});

  MixerInstance crowded = Make(/*n_threads=*/2);
  const size_t n_sessions = slow() ? 3 : 8, ours = n_sessions / 2;
  std::vector<std::vector<float>> inputs;
  std::vector<MixerSession> sessions;
  for (size_t i = 0; i < n_sessions; ++i) {
    inputs.push_back(i == ours ? x_ : RandomRows(n_tokens(), 100 + static_cast<uint32_t>(i)));
    sessions.push_back(crowded.NewSession());
  }
  std::mt19937 random(5);
  std::vector<int64_t> done(n_sessions, 0);
  std::vector<float> y;
  while (done[ours] < n_tokens()) {
    std::vector<MixerInstance::Rows> together;
    if (on_cuda()) together.push_back({nullptr, 0, RandomRows(1, 99)});
    int64_t first_row = 0, rows_before = on_cuda() ? 1 : 0, rows = 0;
    for (size_t i = 0; i < n_sessions; ++i) {
      const int64_t n =
          std::min<int64_t>(n_tokens() - done[i], 1 + static_cast<int64_t>(random() % 70));
      if (n == 0) continue;
      if (i == ours) {
        first_row = rows_before;
        rows = n;
      }
      together.push_back({sessions[i].base(), done[i], Rows(inputs[i], done[i], done[i] + n)});
      done[i] += n;
      rows_before += n;
    }
    const std::vector<float> step = Rows(crowded.RunBatch(together), first_row, first_row + rows);
    y.insert(y.end(), step.begin(), step.end());
  }
  EXPECT_TRUE(SameBytes(y, expected));
  EXPECT_TRUE(SameBytes(sessions[ours].bytes(), expected_session.bytes()));
  for (MixerSession& session : sessions) EXPECT_TRUE(session.GuardsIntact());
}

TEST_P(MixerContract, MovedStateContinuesAsIfNeverMoved) {
  constexpr int kMovedAt = 150;
  MixerInstance instance = Make();
  MixerSession stayed = instance.NewSession(), moved = instance.NewSession();
  const std::vector<float> expected = instance.Run(stayed, x_, {kMovedAt});
  instance.RunBatch({{moved.base(), 0, Rows(x_, 0, kMovedAt)}});
  // The new memory is taken before the old one goes, so that it lies elsewhere.
  moved = MixerSession(instance.context(), moved.bytes());
  const std::vector<float> y =
      instance.RunBatch({{moved.base(), kMovedAt, Rows(x_, kMovedAt, n_tokens())}});
  EXPECT_TRUE(SameBytes(y, Rows(expected, kMovedAt, n_tokens())));
  EXPECT_TRUE(SameBytes(moved.bytes(), stayed.bytes()));
}

TEST_P(MixerContract, AgreesWithReference) {
  const MixerCase& c = GetParam();
  if (c.device == Device::kReference) GTEST_SKIP() << "the reference itself";
  MixerInstance reference(c, Device::kReference, 1, n_tokens()), instance = Make();
  MixerSession reference_session = reference.NewSession(), session = instance.NewSession();
  const std::vector<float> expected = reference.Run(reference_session, x_, {});
  const std::vector<float> y = instance.Run(session, x_, {});
  // Outputs are sums of output_terms products of size ~0.15: in float32 the error is a
  // small multiple of 2^-23 sqrt(terms) (softmax scores up to beta = 8 multiply it by 8). bfloat16
  // rounds queries, keys, values, the softmax's weights and the attended vector, each to 2^-9
  // relative, and a rounding that falls the other way moves an output by that much; stochastic
  // rounding moves a mean by up to 2^-8.
  const bool bf16 = c.kv_dtype != DType::kF32 || c.compute_dtype == DType::kBF16;
  const double scale = 0.15 * std::sqrt(static_cast<double>(c.output_terms));
  // int8 rows move by a unit of their scale, 2^-7 to 2^-6 of their largest channel.
  const double rounding = c.kv_dtype == DType::kI8 ? 0x1p-7 : 0x1p-8;
  const double tolerance = bf16 ? scale * 8 * rounding : scale * 64 * 0x1p-23;
  AssertClose(y, expected, tolerance, "y");
}

TEST_P(MixerContract, RunsFarBeyondTwoToTheForty) {
  constexpr int kFarTokens = 150;
  MixerInstance instance = Make();
  const MixerState& state = instance.mixer().state();
  if (state.growth.exists() && !state.growth.capped()) GTEST_SKIP() << "a slot a token: no memory";
  MixerSession whole = instance.NewSession(), split = instance.NewSession();
  const int64_t unit = std::max<int64_t>(state.span, 1) * kBlockSlots;
  const int64_t start = (int64_t{1} << 40) / unit * unit;
  const std::vector<float> x = Rows(x_, 0, kFarTokens);
  const std::vector<float> expected = instance.Run(whole, x, {}, start);
  for (float value : expected) ASSERT_TRUE(std::isfinite(value));
  const std::vector<int64_t> cuts =
      slow() ? std::vector<int64_t>{1, 2, 63, 64, 65, 127, 128} : EveryToken(kFarTokens);
  EXPECT_TRUE(SameBytes(instance.Run(split, x, cuts, start), expected));
  EXPECT_TRUE(SameBytes(whole.bytes(), split.bytes()));
}

// Tokens change no byte that UndoExtents does not name, so restoring those bytes undoes the tokens.
TEST_P(MixerContract, OverwritesNamesEveryByteThatChanges) {
  MixerInstance instance = Make();
  // Without a span every token may rewrite the whole state.
  const bool has_span = instance.mixer().state().span > 0;
  const int64_t span = has_span ? instance.mixer().state().span : n_tokens();
  MixerSession session = instance.NewSession();
  std::vector<std::byte> before = session.bytes();
  bool partial = false;
  for (int64_t begin = 0, step = 0; begin < n_tokens(); ++step) {
    const int64_t end =
        std::min<int64_t>({n_tokens(), (begin / span + 1) * span, begin + 1 + step % 3 * 40});
    instance.RunBatch({{session.base(), begin, Rows(x_, begin, end)}});
    const std::vector<std::byte> after = session.bytes();
    std::vector<std::byte> undone = after;
    const size_t named = PutBack(instance, {begin, end, instance.slot_cap()}, before, undone);
    ASSERT_EQ(undone, before) << "tokens " << begin << " to " << end;
    ASSERT_LE(named, before.size());
    partial |= named < before.size();
    before = after;
    begin = end;
  }
  EXPECT_TRUE(partial || !has_span) << "a span is promised, yet every record is the whole state";
}

// With CanUndoSuffix the last tokens are undone alone: the state is that of the others. Every mixer
// with spans and without token shift has such tokens.
TEST_P(MixerContract, TokensThatWriteApartAreUndoneOneByOne) {
  MixerInstance instance = Make();
  const int64_t span = instance.mixer().state().span;
  if (span == 0) GTEST_SKIP() << "every token rewrites the state";
  constexpr int64_t kTogether = 9;
  int64_t n_apart = 0;
  MixerSession session = instance.NewSession();
  for (int64_t begin = 0; begin < n_tokens(); begin += kTogether) {
    const int64_t end =
        std::min<int64_t>({n_tokens(), (begin / span + 1) * span - 1, begin + kTogether});
    if (end - begin > 1 && instance.mixer().CanUndoSuffix({begin, end, instance.slot_cap()})) {
      ++n_apart;
      MixerSession all(instance.context(), session.bytes());
      const std::vector<std::byte> before = session.bytes();
      instance.RunBatch({{all.base(), begin, Rows(x_, begin, end)}});
      for (const int64_t kept : {begin + 1, (begin + end) / 2, end - 1}) {
        MixerSession some(instance.context(), before);
        if (kept > begin) instance.RunBatch({{some.base(), begin, Rows(x_, begin, kept)}});
        std::vector<std::byte> undone = all.bytes();
        PutBack(instance, {kept, end, instance.slot_cap()}, before, undone);
        ASSERT_EQ(undone, some.bytes()) << "of " << begin << " to " << end << " up to " << kept;
      }
    }
    const int64_t next = std::min<int64_t>(begin + kTogether, n_tokens());
    instance.RunBatch({{session.base(), begin, Rows(x_, begin, next)}});
  }
  const auto& fields = instance.mixer().state().fixed.list();
  const bool shifts = std::ranges::any_of(
      fields, [](const StateField& field) { return std::string(field.name) == "newest_row"; });
  EXPECT_EQ(n_apart > 0, !shifts);
}

TEST(MixerCases, EveryMixerHasSome) {
  for (const MixerEntry& entry : MixerRegistry()) {
    EXPECT_TRUE(std::ranges::any_of(MixerCases::All(), [&](const MixerCase& c) {
      return c.type == entry.layer_type;
    })) << entry.layer_type;
  }
}

TEST(MixerCases, EveryMixerHasABenchmark) {
  for (const MixerEntry& entry : MixerRegistry()) {
    const MixerCase c = BenchCase(entry.layer_type);
    EXPECT_TRUE(MakeState(c, c.kv_dtype, Device::kCpu).ok()) << entry.layer_type;
  }
}

INSTANTIATE_TEST_SUITE_P(All, MixerContract, ::testing::ValuesIn(MixerCases::OnDevices()),
                         MixerCaseName);

}  // namespace
}  // namespace ovq::kernels::test
