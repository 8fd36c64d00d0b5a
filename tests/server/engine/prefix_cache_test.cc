// PrefixCache by itself: hits, places of copies, tenants and eviction.
#include "server/engine/common/prefix_cache.h"

#include <gtest/gtest.h>

#include <numeric>
#include <random>

#include "tests/server/engine/fake_model.h"
#include "tests/test_util.h"

namespace ovq::engine::test {
namespace {

std::vector<int32_t> Concatenated(std::vector<int32_t> first, const std::vector<int32_t>& second) {
  first.insert(first.end(), second.begin(), second.end());
  return first;
}

constexpr int64_t kMin = kPrefixMinTokens;

std::vector<int32_t> First(const std::vector<int32_t>& tokens, int64_t n) {
  return {tokens.begin(), tokens.begin() + n};
}

class PrefixCacheTest : public testing::Test {
 protected:
  // Runs a prompt, and an answer to it if there is one, with the cache as the scheduler does. Fills
  // its state at each stop with bytes that follow from the consumed tokens. Returns the number of
  // tokens found in the cache.
  int64_t Read(PrefixCache& cache, const std::vector<int32_t>& tokens, int64_t shared = 0,
               const std::vector<int32_t>& answer = {}) {
    StateHandle state = *pool_.Acquire(model_.layout(), slot_cap_, size_t{1} << 30);
    PrefixRun run = cache.Begin(tenant_, variant_, tokens, shared, state);
    const int64_t taken = state.position;
    if (taken > 0) {
      std::vector<std::byte> bytes(pool_.SnapshotBytes(state));
      pool_.CopyOut(state, bytes);
      EXPECT_EQ(bytes, StateBehind(tokens, taken));
    }
    stops_.clear();
    while (run.next_stop() <= std::ssize(tokens)) {
      const int64_t stop = run.next_stop();
      EXPECT_GT(stop, state.position);
      stops_.push_back(stop);
      Advance(state, tokens, stop);
      cache.Keep(run, std::span(tokens).first(static_cast<size_t>(stop)), state);
    }
    if (!answer.empty()) {
      const std::vector<int32_t> all = Concatenated(tokens, answer);
      Advance(state, all, std::ssize(all));
      cache.KeepAnswer(run, all, state);
    }
    pool_.Release(state);
    return taken;
  }
  void Advance(StateHandle& state, const std::vector<int32_t>& tokens, int64_t n) {
    EXPECT_TRUE(pool_.Restart(state).ok());
    EXPECT_TRUE(pool_.CopyIn(state, n, StateBehind(tokens, n)).ok());
  }
  size_t CopyBytes(int64_t position) const {
    return model_.layout().live_bytes_at(position, slot_cap_);
  }
  // Bytes of a copy behind so many tokens that no other copy shares.
  size_t Alone(int64_t position) const {
    return CopyBytes(position) + kPrefixNodeBytes + static_cast<size_t>(position) * sizeof(int32_t);
  }
  std::vector<std::byte> StateBehind(const std::vector<int32_t>& tokens, int64_t n) const {
    uint32_t sum = 0;
    for (int64_t i = 0; i < n; ++i) sum = 31 * sum + static_cast<uint32_t>(tokens[i]);
    return std::vector<std::byte>(CopyBytes(n), static_cast<std::byte>(sum >> 7));
  }
  static int64_t Sum(const auto& counts) {
    return std::accumulate(counts.begin(), counts.end(), int64_t{0});
  }

  FakeModel model_;
  ModelVariant variant_ = model_.Make().variants[0];
  std::unique_ptr<kernels::DeviceContext> context_ =
      kernels::test::MakeContext(kernels::Device::kCpu);
  StatePool pool_{size_t{4} << 30, *context_};
  std::string tenant_ = "alice";
  int32_t slot_cap_ = kDefaultSlotCap;
  std::vector<int64_t> stops_;  // of the last Read
};

using Stops = std::vector<int64_t>;

TEST_F(PrefixCacheTest, FindsTheLongestBeginningAtAnyToken) {
  PrefixCache cache(size_t{1} << 28, pool_);
  const std::vector<int32_t> prompt = SomeTokens(777, 1);
  EXPECT_EQ(Read(cache, prompt), 0);
  EXPECT_EQ(stops_, Stops{777});
  EXPECT_EQ(Read(cache, prompt), 777);
  EXPECT_TRUE(stops_.empty());
  EXPECT_EQ(Read(cache, Concatenated(prompt, SomeTokens(500, 2))), 777);
  EXPECT_EQ(stops_, Stops{1277});
  // Copies exist at the stops only: a shorter prefix finds none, and leaves one.
  EXPECT_EQ(Read(cache, First(prompt, 700)), 0);
  EXPECT_EQ(stops_, Stops{700});
  EXPECT_EQ(Read(cache, First(prompt, 760)), 700);
  const PrefixStats stats = cache.stats();
  EXPECT_EQ(stats.queries, 5);
  EXPECT_EQ(stats.hits, (std::array<int64_t, 3>{0, 3, 0}));
  EXPECT_EQ(stats.cached_tokens, (std::array<int64_t, 3>{0, 2254, 0}));
  EXPECT_EQ(Read(cache, prompt), 777);
  EXPECT_EQ(cache.stats().hits, (std::array<int64_t, 3>{1, 3, 0}))
      << "a copy with which two prompts have begun is shared";
  EXPECT_EQ(stats.lost_tokens, 760);
  EXPECT_EQ(stats.bytes, CopyBytes(700) + CopyBytes(760) + CopyBytes(777) + CopyBytes(1277) +
                             5 * kPrefixNodeBytes + 1277 * sizeof(int32_t));
}

TEST_F(PrefixCacheTest, FewTokensAreNoQuery) {
  PrefixCache cache(size_t{1} << 28, pool_);
  for (int i = 0; i < 2; ++i) EXPECT_EQ(Read(cache, SomeTokens(kMin - 1, 1)), 0);
  EXPECT_EQ(cache.stats().queries, 0);
  EXPECT_EQ(cache.stats().bytes, 0u);
  EXPECT_EQ(cache.stats().not_kept[static_cast<size_t>(PrefixLoss::kTooShort)], 2);
  EXPECT_EQ(Read(cache, SomeTokens(kMin, 1)), 0);
  EXPECT_EQ(Read(cache, SomeTokens(kMin, 1)), kMin);
}

TEST_F(PrefixCacheTest, WhatPromptsShareIsFoundFromTheThirdOn) {
  PrefixCache cache(size_t{1} << 28, pool_);
  const std::vector<int32_t> shared = SomeTokens(613, 1);
  EXPECT_EQ(Read(cache, Concatenated(shared, {1, 2})), 0);
  EXPECT_EQ(Read(cache, Concatenated(shared, {3, 4})), 0);
  EXPECT_EQ(stops_, (Stops{613, 615}));
  EXPECT_EQ(cache.stats().lost_tokens, 613);
  EXPECT_EQ(Read(cache, Concatenated(shared, {5, 6})), 613);
  EXPECT_EQ(stops_, Stops{615});
  EXPECT_EQ(cache.stats().hits[static_cast<size_t>(PrefixKind::kShared)], 1);
}

TEST_F(PrefixCacheTest, WhatIsSaidToBeSharedIsFoundFromTheSecondOn) {
  PrefixCache cache(size_t{1} << 28, pool_);
  const std::vector<int32_t> system = SomeTokens(300, 1);
  EXPECT_EQ(Read(cache, Concatenated(system, SomeTokens(100, 2)), 300), 0);
  EXPECT_EQ(stops_, (Stops{300, 400}));
  EXPECT_EQ(Read(cache, Concatenated(system, SomeTokens(100, 3)), 300), 300);
  EXPECT_EQ(stops_, (Stops{400}));
}

// An agent's turn: the next prompt has the answer, or has it without its reasoning.
TEST_F(PrefixCacheTest, AConversationGoesOnBehindItsAnswerOrBeforeIt) {
  PrefixCache cache(size_t{1} << 28, pool_);
  const std::vector<int32_t> prompt = SomeTokens(300, 1), answer = SomeTokens(90, 2);
  EXPECT_EQ(Read(cache, prompt, 100, answer), 0);
  EXPECT_EQ(Read(cache, Concatenated(Concatenated(prompt, answer), SomeTokens(20, 3)), 100), 390);
  EXPECT_EQ(stops_, Stops{410});
  EXPECT_EQ(Read(cache, Concatenated(prompt, SomeTokens(40, 4)), 100), 300);
  EXPECT_EQ(stops_, Stops{340});
  EXPECT_EQ(Read(cache, Concatenated(First(prompt, 280), SomeTokens(40, 4)), 100), 100);
  EXPECT_EQ(stops_, (Stops{280, 320}));
  EXPECT_EQ(cache.stats().hits, (std::array<int64_t, 3>{1, 1, 1}));
}

TEST_F(PrefixCacheTest, ALargeStateIsCopiedForManyTokensOnly) {
  FakeModel large(FakeModelOptions{.row_words = 1 << 14});
  const model::StateLayout& layout = large.layout();
  const auto tokens_for = [&](int64_t position) {
    return static_cast<int64_t>(layout.live_bytes_at(position, slot_cap_) / kPrefixBytesPerToken);
  };
  ASSERT_GT(tokens_for(200), 2);
  ASSERT_LT(tokens_for(300), 60);
  PrefixCache cache(size_t{1} << 30, pool_);
  const std::vector<int32_t> prompt = SomeTokens(300, 1);
  for (const int64_t more : {2, 60}) {
    StateHandle state = *pool_.Acquire(layout, slot_cap_, size_t{1} << 30);
    PrefixRun run = cache.Begin(tenant_, variant_, First(prompt, 200), 0, state);
    if (state.position == 0) {
      pool_.Grow(state, 200);
      cache.Keep(run, First(prompt, 200), state);
    }
    pool_.Grow(state, 200 + more);
    const size_t before = cache.stats().bytes;
    cache.KeepAnswer(run, First(prompt, 200 + more), state);
    EXPECT_EQ(cache.stats().bytes > before, more == 60) << more;
    pool_.Release(state);
  }
  EXPECT_EQ(cache.stats().not_kept[static_cast<size_t>(PrefixLoss::kTooShort)], 1);
}

TEST_F(PrefixCacheTest, OneTokenMoreOrLessMakesAnotherBeginning) {
  PrefixCache cache(size_t{1} << 28, pool_);
  const std::vector<int32_t> prompt = SomeTokens(500, 1);
  EXPECT_EQ(Read(cache, prompt), 0);
  EXPECT_EQ(Read(cache, Concatenated({7}, prompt)), 0);
  EXPECT_EQ(Read(cache, {prompt.begin() + 1, prompt.end()}), 0);
  std::vector<int32_t> other = prompt;
  ++other[0];
  EXPECT_EQ(Read(cache, other), 0);
}

TEST_F(PrefixCacheTest, BelongsToTenantVariantAndSlotCap) {
  PrefixCache cache(size_t{1} << 28, pool_);
  const std::vector<int32_t> prompt = SomeTokens(500, 1);
  EXPECT_EQ(Read(cache, prompt), 0);
  tenant_ = "bob";
  EXPECT_EQ(Read(cache, prompt), 0);
  EXPECT_EQ(Read(cache, prompt), 500);
  slot_cap_ = 64;
  EXPECT_EQ(Read(cache, prompt), 0);
  EXPECT_EQ(Read(cache, prompt), 500);
  variant_.name = "exact";
  EXPECT_EQ(Read(cache, prompt), 0);
  variant_.fingerprint = std::string(64, 'e');
  EXPECT_EQ(Read(cache, prompt), 0);
  // Tenant and variant names are separated in the hash.
  tenant_ = "bob" + variant_.fingerprint;
  variant_.fingerprint.clear();
  EXPECT_EQ(Read(cache, prompt), 0);
  EXPECT_EQ(Sum(cache.stats().hits), 2);
  EXPECT_EQ(cache.stats().lost_tokens, 0) << "no tenant counts another's tokens";
}

TEST_F(PrefixCacheTest, TheOneUsedLongestAgoGoes) {
  constexpr int64_t kTokens = 256;
  const size_t one = Alone(kTokens);
  PrefixCache cache(3 * one + kPrefixNodeBytes + one / 2, pool_);
  const auto prompt = [](uint32_t seed) { return SomeTokens(kTokens, seed); };
  for (const uint32_t seed : {1, 2, 3}) EXPECT_EQ(Read(cache, prompt(seed)), 0);
  EXPECT_EQ(cache.stats().bytes, 3 * one + kPrefixNodeBytes);
  EXPECT_EQ(Read(cache, prompt(1)), kTokens);
  EXPECT_EQ(Read(cache, prompt(4)), 0);  // evicts 2
  EXPECT_EQ(cache.stats().evictions, 1);
  EXPECT_EQ(cache.stats().bytes, 3 * one + kPrefixNodeBytes);
  for (const uint32_t seed : {3, 1, 4}) EXPECT_EQ(Read(cache, prompt(seed)), kTokens) << seed;
  EXPECT_EQ(Read(cache, prompt(2)), 0);  // evicts 3
  EXPECT_EQ(Read(cache, prompt(3)), 0);
  EXPECT_EQ(cache.stats().evictions, 3);
  EXPECT_LE(cache.stats().bytes, cache.stats().budget_bytes);
}

// A long conversation takes two copies from the others, however many turns it has.
TEST_F(PrefixCacheTest, WhatLongerCopiesSupersedeGoesFirst) {
  const size_t one = Alone(4000);  // no copy takes more
  PrefixCache cache(6 * one, pool_);
  const std::vector<int32_t> system = SomeTokens(200, 1);
  std::vector<int32_t> idle = Concatenated(system, SomeTokens(300, 2)), busy = system;
  EXPECT_EQ(Read(cache, idle, 200, SomeTokens(100, 3)), 0);
  for (uint32_t turn = 0; turn < 30; ++turn) {
    const int64_t before = std::ssize(busy);
    busy = Concatenated(busy, SomeTokens(80, 10 + turn));
    EXPECT_EQ(Read(cache, busy, 200, SomeTokens(70, 100 + turn)), before) << turn;
  }
  EXPECT_GT(cache.stats().evictions, 10);
  EXPECT_EQ(Read(cache, Concatenated(Concatenated(idle, SomeTokens(100, 3)), {1, 2, 3}), 200), 600);
  EXPECT_EQ(Read(cache, Concatenated(system, SomeTokens(300, 4)), 200), 200);
}

// A prefix may lose its copy before or after longer ones that continue it.
TEST_F(PrefixCacheTest, BeginningsGoInAnyOrder) {
  PrefixCache cache(4 * Alone(768), pool_);
  std::mt19937 random(3);
  std::vector<std::vector<int32_t>> said = {{}};
  for (int i = 0; i < 2000; ++i) {
    std::vector<int32_t> prompt = said[random() % said.size()];
    prompt.resize(random() % (prompt.size() + 1));
    prompt = Concatenated(prompt, SomeTokens(static_cast<int64_t>(random() % 300), random() % 5));
    if (std::ssize(prompt) > 768) prompt.resize(768);
    const auto shared = static_cast<int64_t>(random() % 300);
    Read(cache, prompt, shared, SomeTokens(static_cast<int64_t>(random() % 100), random() % 3));
    ASSERT_LE(cache.stats().bytes, cache.stats().budget_bytes);
    said.push_back(prompt);
    if (said.size() > 20) said.erase(said.begin());
  }
  EXPECT_GT(cache.stats().evictions, 100);
  EXPECT_GT(Sum(cache.stats().hits), 100);
}

TEST_F(PrefixCacheTest, ForgottenTokensLeaveNothing) {
  PrefixCache cache(size_t{1} << 28, pool_);
  const std::vector<int32_t> prompt = SomeTokens(300, 1), other = SomeTokens(200, 2);
  Read(cache, other);
  const size_t before = cache.stats().bytes;
  StateHandle state = *pool_.Acquire(model_.layout(), slot_cap_, size_t{1} << 30);
  PrefixRun run = cache.Begin(tenant_, variant_, prompt, 100, state);
  Read(cache, prompt, 100, SomeTokens(80, 3));
  cache.Forget(run, Concatenated(prompt, SomeTokens(80, 3)));
  EXPECT_EQ(cache.stats().bytes, before);
  EXPECT_EQ(Read(cache, other), 200);
  cache.Forget(run, other);
  EXPECT_EQ(cache.stats().bytes, 0u);
  pool_.Release(state);
}

TEST_F(PrefixCacheTest, WhatTheBudgetCannotHoldIsNotKept) {
  const size_t needed = Alone(512) + 2 * kPrefixNodeBytes;
  const std::vector<int32_t> prompt = SomeTokens(512, 1);
  PrefixCache small(needed - 1, pool_), enough(needed, pool_), none(0, pool_);
  for (PrefixCache* cache : {&small, &none}) {
    EXPECT_EQ(Read(*cache, prompt), 0);
    EXPECT_EQ(Read(*cache, prompt), 0);
    EXPECT_EQ(cache->stats().bytes, 0u);
  }
  EXPECT_EQ(small.stats().queries, 2);
  EXPECT_EQ(small.stats().not_kept[static_cast<size_t>(PrefixLoss::kNoMemory)], 2);
  EXPECT_EQ(none.stats().queries, 0);
  EXPECT_EQ(Sum(none.stats().not_kept), 0);
  EXPECT_EQ(Read(enough, prompt), 0);
  EXPECT_EQ(Read(enough, prompt), 512);
}

TEST_F(PrefixCacheTest, PromptsThatAreReadSideBySideLeaveOneCopy) {
  PrefixCache cache(size_t{1} << 28, pool_);
  const std::vector<int32_t> prompt = SomeTokens(256, 1);
  StateHandle states[] = {*pool_.Acquire(model_.layout(), slot_cap_, size_t{1} << 30),
                          *pool_.Acquire(model_.layout(), slot_cap_, size_t{1} << 30)};
  PrefixRun runs[] = {cache.Begin("", variant_, prompt, 0, states[0]),
                      cache.Begin("", variant_, prompt, 0, states[1])};
  for (int i = 0; i < 2; ++i) {
    Advance(states[i], prompt, 256);
    cache.Keep(runs[i], prompt, states[i]);
  }
  EXPECT_EQ(cache.stats().bytes, Alone(256) + kPrefixNodeBytes);
  for (StateHandle& state : states) pool_.Release(state);
}

}  // namespace
}  // namespace ovq::engine::test
