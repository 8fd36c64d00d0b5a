// PrefixCache by itself: hits, tenants and eviction.
#include "server/engine/common/prefix_cache.h"

#include <gtest/gtest.h>

#include <random>

#include "tests/server/engine/fake_model.h"
#include "tests/test_util.h"

namespace ovq::engine::test {
namespace {

std::vector<int32_t> Concatenated(std::vector<int32_t> first, const std::vector<int32_t>& second) {
  first.insert(first.end(), second.begin(), second.end());
  return first;
}

class PrefixCacheTest : public testing::Test {
 protected:
  // Runs a prompt with the cache as the scheduler does. Fills its state at each stop with bytes
  // that follow from the consumed tokens. Returns the number of tokens found in the cache.
  int64_t Read(PrefixCache& cache, const std::vector<int32_t>& tokens) {
    StateHandle state = *pool_.Acquire(model_.layout(), slot_cap_, size_t{1} << 30);
    PrefixRun run = cache.Begin(tenant_, variant_, tokens, state);
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
      EXPECT_TRUE(pool_.Restart(state).ok());
      EXPECT_TRUE(pool_.CopyIn(state, stop, StateBehind(tokens, stop)).ok());
      cache.Keep(run, state);
    }
    pool_.Release(state);
    return taken;
  }
  size_t CopyBytes(int64_t position) const {
    return model_.layout().live_bytes_at(position, slot_cap_);
  }
  std::vector<std::byte> StateBehind(const std::vector<int32_t>& tokens, int64_t n) const {
    uint32_t sum = 0;
    for (int64_t i = 0; i < n; ++i) sum = 31 * sum + static_cast<uint32_t>(tokens[i]);
    return std::vector<std::byte>(CopyBytes(n), static_cast<std::byte>(sum >> 7));
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

TEST_F(PrefixCacheTest, FindsTheLongestBeginning) {
  PrefixCache cache(size_t{1} << 28, pool_);
  const std::vector<int32_t> prompt = SomeTokens(3 * kPrefixBlockTokens + 10, 1);
  EXPECT_EQ(Read(cache, prompt), 0);
  EXPECT_EQ(stops_, std::vector<int64_t>{3 * kPrefixBlockTokens});
  EXPECT_EQ(Read(cache, prompt), 3 * kPrefixBlockTokens);
  EXPECT_TRUE(stops_.empty());
  EXPECT_EQ(Read(cache, Concatenated(prompt, SomeTokens(2 * kPrefixBlockTokens, 2))),
            3 * kPrefixBlockTokens);
  EXPECT_EQ(stops_, std::vector<int64_t>{5 * kPrefixBlockTokens});
  // Copies exist at the stops only: a shorter prefix finds none.
  EXPECT_EQ(Read(cache, {prompt.begin(), prompt.begin() + 3 * kPrefixBlockTokens - 1}), 0);
  EXPECT_EQ(stops_, std::vector<int64_t>{2 * kPrefixBlockTokens});
  EXPECT_EQ(cache.stats().queries, 4);
  EXPECT_EQ(cache.stats().hits, 2);
  EXPECT_EQ(cache.stats().cached_tokens, 6 * kPrefixBlockTokens);
  EXPECT_EQ(cache.stats().bytes, CopyBytes(2 * kPrefixBlockTokens) +
                                     CopyBytes(3 * kPrefixBlockTokens) +
                                     CopyBytes(5 * kPrefixBlockTokens) + 5 * kPrefixBlockBytes);
}

TEST_F(PrefixCacheTest, LessThanABlockIsNoQuery) {
  PrefixCache cache(size_t{1} << 28, pool_);
  EXPECT_EQ(Read(cache, SomeTokens(kPrefixBlockTokens - 1, 1)), 0);
  EXPECT_EQ(cache.stats().queries, 0);
  EXPECT_EQ(cache.stats().bytes, 0u);
}

TEST_F(PrefixCacheTest, WhatPromptsShareIsFoundFromTheThirdOn) {
  PrefixCache cache(size_t{1} << 28, pool_);
  const std::vector<int32_t> shared = SomeTokens(2 * kPrefixBlockTokens + 100, 1);
  EXPECT_EQ(Read(cache, Concatenated(shared, SomeTokens(3 * kPrefixBlockTokens, 2))), 0);
  EXPECT_EQ(Read(cache, Concatenated(shared, SomeTokens(2 * kPrefixBlockTokens, 3))), 0);
  EXPECT_EQ(stops_, (std::vector<int64_t>{2 * kPrefixBlockTokens, 4 * kPrefixBlockTokens}));
  EXPECT_EQ(Read(cache, Concatenated(shared, SomeTokens(2 * kPrefixBlockTokens, 4))),
            2 * kPrefixBlockTokens);
  EXPECT_EQ(stops_, std::vector<int64_t>{4 * kPrefixBlockTokens});
}

TEST_F(PrefixCacheTest, OneTokenMoreOrLessBeforeABlockMakesAnotherBeginning) {
  PrefixCache cache(size_t{1} << 28, pool_);
  const std::vector<int32_t> prompt = SomeTokens(2 * kPrefixBlockTokens, 1);
  EXPECT_EQ(Read(cache, prompt), 0);
  EXPECT_EQ(Read(cache, Concatenated({7}, prompt)), 0);
  EXPECT_EQ(Read(cache, {prompt.begin() + 1, prompt.end()}), 0);
  std::vector<int32_t> other = prompt;
  ++other[0];
  EXPECT_EQ(Read(cache, other), 0);
}

TEST_F(PrefixCacheTest, BelongsToTenantVariantAndSlotCap) {
  PrefixCache cache(size_t{1} << 28, pool_);
  const std::vector<int32_t> prompt = SomeTokens(2 * kPrefixBlockTokens, 1);
  EXPECT_EQ(Read(cache, prompt), 0);
  tenant_ = "bob";
  EXPECT_EQ(Read(cache, prompt), 0);
  EXPECT_EQ(Read(cache, prompt), 2 * kPrefixBlockTokens);
  slot_cap_ = 64;
  EXPECT_EQ(Read(cache, prompt), 0);
  EXPECT_EQ(Read(cache, prompt), 2 * kPrefixBlockTokens);
  variant_.name = "exact";
  EXPECT_EQ(Read(cache, prompt), 0);
  variant_.fingerprint = std::string(64, 'e');
  EXPECT_EQ(Read(cache, prompt), 0);
  // Tenant and variant names are separated in the hash.
  tenant_ = "bob" + variant_.fingerprint;
  variant_.fingerprint.clear();
  EXPECT_EQ(Read(cache, prompt), 0);
  EXPECT_EQ(cache.stats().hits, 2);
}

TEST_F(PrefixCacheTest, TheOneUsedLongestAgoGoes) {
  const size_t one = CopyBytes(kPrefixBlockTokens) + kPrefixBlockBytes;
  PrefixCache cache(3 * one + one / 2, pool_);
  const auto prompt = [](uint32_t seed) { return SomeTokens(kPrefixBlockTokens, seed); };
  for (const uint32_t seed : {1, 2, 3}) EXPECT_EQ(Read(cache, prompt(seed)), 0);
  EXPECT_EQ(cache.stats().bytes, 3 * one);
  EXPECT_EQ(Read(cache, prompt(1)), kPrefixBlockTokens);
  EXPECT_EQ(Read(cache, prompt(4)), 0);  // evicts 2
  EXPECT_EQ(cache.stats().evictions, 1);
  EXPECT_EQ(cache.stats().bytes, 3 * one);
  for (const uint32_t seed : {3, 1, 4})
    EXPECT_EQ(Read(cache, prompt(seed)), kPrefixBlockTokens) << seed;
  EXPECT_EQ(Read(cache, prompt(2)), 0);  // evicts 3
  EXPECT_EQ(Read(cache, prompt(3)), 0);
  EXPECT_EQ(cache.stats().evictions, 3);
  EXPECT_LE(cache.stats().bytes, cache.stats().budget_bytes);
}

// A prefix may lose its copy before or after longer ones that continue it.
TEST_F(PrefixCacheTest, BeginningsGoInAnyOrder) {
  PrefixCache cache(
      CopyBytes(kPrefixBlockTokens) + 2 * CopyBytes(3 * kPrefixBlockTokens) + 5 * kPrefixBlockBytes,
      pool_);
  const std::vector<int32_t> prompt = SomeTokens(3 * kPrefixBlockTokens, 1);
  EXPECT_EQ(Read(cache, {prompt.begin(), prompt.begin() + kPrefixBlockTokens}), 0);
  EXPECT_EQ(Read(cache, prompt), kPrefixBlockTokens);
  EXPECT_EQ(Read(cache, prompt), 3 * kPrefixBlockTokens);
  EXPECT_EQ(Read(cache, SomeTokens(3 * kPrefixBlockTokens, 2)), 0);  // evicts the one block
  EXPECT_EQ(cache.stats().evictions, 1);
  EXPECT_EQ(Read(cache, {prompt.begin(), prompt.begin() + kPrefixBlockTokens}),
            0);  // evicts the three
  EXPECT_EQ(cache.stats().evictions, 2);
  EXPECT_EQ(Read(cache, prompt), kPrefixBlockTokens);
  std::mt19937 random(3);
  for (int i = 0; i < 300; ++i) {
    const auto n = static_cast<int64_t>(1 + random() % 3) * kPrefixBlockTokens;
    std::vector<int32_t> some = SomeTokens(n, 1 + random() % 3);
    if (random() % 2 == 0)
      some = Concatenated({prompt.begin(), prompt.begin() + kPrefixBlockTokens}, some);
    Read(cache, some);
    ASSERT_LE(cache.stats().bytes, cache.stats().budget_bytes);
  }
  EXPECT_GT(cache.stats().evictions, 100);
}

TEST_F(PrefixCacheTest, WhatTheBudgetCannotHoldIsNotKept) {
  const size_t needed = CopyBytes(2 * kPrefixBlockTokens) + 2 * kPrefixBlockBytes;
  const std::vector<int32_t> prompt = SomeTokens(2 * kPrefixBlockTokens, 1);
  PrefixCache small(needed - 1, pool_), enough(needed, pool_), none(0, pool_);
  for (PrefixCache* cache : {&small, &none}) {
    EXPECT_EQ(Read(*cache, prompt), 0);
    EXPECT_EQ(Read(*cache, prompt), 0);
    EXPECT_EQ(cache->stats().bytes, 0u);
  }
  EXPECT_EQ(small.stats().queries, 2);
  EXPECT_EQ(none.stats().queries, 0);
  EXPECT_EQ(Read(enough, prompt), 0);
  EXPECT_EQ(Read(enough, prompt), 2 * kPrefixBlockTokens);
}

TEST_F(PrefixCacheTest, PromptsThatAreReadSideBySideLeaveOneCopy) {
  PrefixCache cache(size_t{1} << 28, pool_);
  const std::vector<int32_t> prompt = SomeTokens(kPrefixBlockTokens, 1);
  StateHandle first = *pool_.Acquire(model_.layout(), slot_cap_, size_t{1} << 30);
  StateHandle second = *pool_.Acquire(model_.layout(), slot_cap_, size_t{1} << 30);
  PrefixRun runs[] = {cache.Begin("", variant_, prompt, first),
                      cache.Begin("", variant_, prompt, second)};
  EXPECT_TRUE(
      pool_.CopyIn(first, kPrefixBlockTokens, StateBehind(prompt, kPrefixBlockTokens)).ok());
  EXPECT_TRUE(
      pool_.CopyIn(second, kPrefixBlockTokens, StateBehind(prompt, kPrefixBlockTokens)).ok());
  cache.Keep(runs[0], first);
  cache.Keep(runs[1], second);
  EXPECT_EQ(cache.stats().bytes, CopyBytes(kPrefixBlockTokens) + kPrefixBlockBytes);
  pool_.Release(first);
  pool_.Release(second);
}

}  // namespace
}  // namespace ovq::engine::test
