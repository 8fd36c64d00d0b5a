#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <random>
#include <utility>
#include <vector>

#include "kernels/mixers/closest_pair/candidates.h"
#include "kernels/mixers/closest_pair/nearest.h"
#include "tests/kernels/mixers/mixer_test_util.h"

namespace ovq::kernels::test {
namespace {

constexpr int64_t kHeads = 2, kHeadDim = 24;

MixerCase PairCase(const std::string& type, int64_t chunk_len, int64_t slot_cap,
                   DType kv_dtype = DType::kF32) {
  return {.type = type,
          .name = "",
          .model = {{"num_attention_heads", kHeads}, {"head_dim", kHeadDim}},
          .section = {{"chunk_size", chunk_len}},
          .weights = {{"self_attn.beta", {6.0f, 1.0f}}},
          .slot_cap = slot_cap,
          .output_terms = kHeads * kHeadDim,
          .kv_dtype = kv_dtype};
}

// A field of every slot (counts or oldest tokens), [head][slot], in the state's order.
std::vector<std::vector<uint32_t>> ReadSlotField(const std::string& field,
                                                 const MixerInstance& instance,
                                                 const MixerSession& session, int64_t n_slots) {
  const MixerState& state = instance.mixer().state();
  const std::vector<std::byte> bytes = session.bytes();
  const auto& fields = state.block.list();
  const auto found = std::ranges::find(fields, field, [](const StateField& f) { return f.name; });
  const auto in_head = static_cast<int>(found - fields.begin());
  std::vector<std::vector<uint32_t>> counts(kHeads);
  for (int head = 0; head < kHeads; ++head) {
    for (int64_t row = 0; row < n_slots; ++row) {
      const size_t at = instance.where().FieldOffset(
                            state, head * state.fields_per_head() + in_head, row / kBlockSlots) +
                        static_cast<size_t>(row % kBlockSlots) * 4;
      uint32_t count;
      std::memcpy(&count, bytes.data() + at, sizeof(count));
      counts[head].push_back(count);
    }
  }
  return counts;
}

std::vector<std::vector<uint32_t>> Counts(const MixerInstance& instance,
                                          const MixerSession& session, int64_t n_slots) {
  return ReadSlotField("counts", instance, session, n_slots);
}

constexpr DType kStateTypes[] = {DType::kF32, DType::kBF16, DType::kI8};

class ClosestPair : public ::testing::TestWithParam<Device> {
 protected:
  void SetUp() override {
    const std::string missing = WhyNoDevice(GetParam());
    if (!missing.empty()) GTEST_SKIP() << missing;
  }
};

TEST_P(ClosestPair, IsFullAttentionToTheBitUntilTheCapIsReached) {
  constexpr int64_t kCap = 150, kExact = 192;  // the chunk that exceeds the cap still attends to
                                               // all tokens
  const std::vector<float> x = RandomRows(260, 3);
  for (const auto& [type, dtype] : {std::pair("closest_pair_attention", DType::kF32),
                                    {"closest_pair_attention", DType::kBF16},
                                    {"closest_pair_attention", DType::kI8},
                                    {"key_diff_attention", DType::kF32},
                                    {"key_diff_attention", DType::kBF16},
                                    {"key_diff_attention", DType::kI8}}) {
    MixerInstance full(PairCase("full_attention", 64, 0, dtype), GetParam(), 1, 260);
    MixerInstance rows(PairCase(type, 64, kCap, dtype), GetParam(), 1, 260);
    MixerSession of_full = full.NewSession(), of_rows = rows.NewSession();
    const std::vector<float> expected = full.Run(of_full, x, {}), y = rows.Run(of_rows, x, {});
    const auto exact = static_cast<std::ptrdiff_t>(kExact * kModelDim);
    EXPECT_TRUE(std::equal(y.begin(), y.begin() + exact, expected.begin()));
    EXPECT_FALSE(std::equal(y.begin() + exact, y.end(), expected.begin() + exact));
  }
}

TEST_P(ClosestPair, EveryTokenIsCountedOnce) {
  for (const DType dtype : kStateTypes) {
    MixerInstance instance(PairCase("closest_pair_attention", 16, 70, dtype), GetParam(), 1, 208);
    MixerSession session = instance.NewSession();
    instance.Run(session, RandomRows(208, 5), {});
    for (const auto& counts : Counts(instance, session, 70)) {
      EXPECT_EQ(std::accumulate(counts.begin(), counts.end(), 0u), 208u);
      EXPECT_GE(*std::ranges::min_element(counts), 1u);
    }
  }
}

// Repeated tokens have equal keys and values: many pairs at distance 0, which must merge first.
TEST_P(ClosestPair, EqualTokensMergeFirst) {
  constexpr int64_t kDistinct = 9, kTokens = 160, kCap = 24;
  const std::vector<float> distinct = RandomRows(kDistinct, 6);
  std::vector<float> x;
  for (int64_t t = 0; t < kTokens; ++t) {
    const std::vector<float> row = Rows(distinct, t * t % kDistinct, t * t % kDistinct + 1);
    x.insert(x.end(), row.begin(), row.end());
  }
  MixerInstance full(PairCase("full_attention", 16, 0), GetParam(), 1, kTokens);
  MixerInstance instance(PairCase("closest_pair_attention", 16, kCap), GetParam(), 1, kTokens);
  MixerSession of_full = full.NewSession(), session = instance.NewSession();
  const std::vector<float> expected = full.Run(of_full, x, {}), y = instance.Run(session, x, {});
  // Nothing is lost: a slot of n equal tokens, with ln n added to its score, acts like the n
  // tokens.
  AssertClose(y, expected, 1e-5, "y");
}

// Tokens 0 and 3 are equal, and so are 1 and 2; one pair has to merge.
TEST_P(ClosestPair, OfEquallyClosePairsThatOfTheOldestMerges) {
  const std::vector<float> distinct = RandomRows(2, 9);
  std::vector<float> x;
  for (const int64_t row : {0, 1, 1, 0}) {
    const std::vector<float> of = Rows(distinct, row, row + 1);
    x.insert(x.end(), of.begin(), of.end());
  }
  MixerInstance instance(PairCase("closest_pair_attention", 4, 3), GetParam(), 1, 4);
  MixerSession session = instance.NewSession();
  instance.Run(session, x, {});
  const std::vector<uint32_t> counts{1, 1, 2}, oldest{1, 2, 0};
  for (int64_t head = 0; head < kHeads; ++head) {
    EXPECT_EQ(Counts(instance, session, 3)[head], counts);
    EXPECT_EQ(ReadSlotField("oldest", instance, session, 3)[head], oldest);
  }
}

TEST_P(ClosestPair, PinnedAndRecentTokensStayRowsOfTheirOwn) {
  constexpr int64_t kCap = 70, kTokens = 208;
  MixerCase apart = PairCase("closest_pair_attention", 16, kCap), plain = apart;
  apart.section["pinned_tokens"] = int64_t{4};
  apart.section["recent_tokens"] = int64_t{24};
  const std::vector<float> x = RandomRows(kTokens, 5);
  const auto alone = [&](const MixerCase& of, int64_t n_tokens) {
    MixerInstance instance(of, GetParam(), 1, kTokens);
    MixerSession session = instance.NewSession();
    instance.Run(session, Rows(x, 0, n_tokens), {});
    const int64_t n_slots = std::min(n_tokens / 16 * 16, kCap);
    const auto counts = Counts(instance, session, n_slots),
               oldest = ReadSlotField("oldest", instance, session, n_slots);
    std::vector<int64_t> least(kHeads);
    for (size_t head = 0; head < kHeads; ++head) {
      EXPECT_EQ(std::accumulate(counts[head].begin(), counts[head].end(), int64_t{0}),
                n_tokens / 16 * 16);
      for (size_t row = 0; row < counts[head].size(); ++row) {
        const int64_t age = n_tokens - oldest[head][row];
        if (counts[head][row] == 1 && (oldest[head][row] < 4 || age <= 24)) ++least[head];
      }
    }
    return *std::ranges::min_element(least);
  };
  for (const int64_t n_tokens : {64, 80, 96, 112, 208}) {
    EXPECT_EQ(alone(apart, n_tokens), 4 + 24) << n_tokens;
  }
  EXPECT_LT(alone(plain, kTokens), 4 + 24);
  // Within a chunk, its tokens are not slots yet.
  EXPECT_EQ(alone(apart, 203), 4 + 24 - 11);
}

TEST_P(ClosestPair, ValuesCountAsMuchAsTheModelSays) {
  MixerCase keys = PairCase("closest_pair_attention", 16, 24), both = keys;
  keys.section["value_weight"] = 0.0;
  const std::vector<float> x = RandomRows(96, 1);
  std::vector<std::vector<std::vector<uint32_t>>> counts;
  for (const MixerCase& of : {keys, both}) {
    MixerInstance instance(of, GetParam(), 1, 96);
    MixerSession session = instance.NewSession();
    instance.Run(session, x, {});
    counts.push_back(Counts(instance, session, 24));
  }
  EXPECT_NE(counts[0], counts[1]);
}

// Keys and values of broken weights: the search ends and leaves the right number of slots.
TEST_P(ClosestPair, NumbersThatAreNoneStayBounded) {
  std::vector<float> x = RandomRows(100, 7);
  x[40 * kModelDim] = std::numeric_limits<float>::quiet_NaN();
  x[50 * kModelDim] = std::numeric_limits<float>::infinity();
  MixerInstance instance(PairCase("closest_pair_attention", 16, 20), GetParam(), 1, 100);
  MixerSession session = instance.NewSession();
  instance.Run(session, x, {});
  EXPECT_TRUE(session.GuardsIntact());
  for (const auto& counts : Counts(instance, session, 20)) {
    EXPECT_EQ(std::accumulate(counts.begin(), counts.end(), 0u), 96u);
  }
}

INSTANTIATE_TEST_SUITE_P(Devices, ClosestPair, ::testing::ValuesIn(TestDevices()),
                         [](const auto& info) { return DeviceName(info.param); });

TEST(PairSchedule, JoinsBeginAtHalfTheCapAndAreDoneAtTheCap) {
  const PairRule rule;
  EXPECT_EQ(rule.JoinedAt(0, 100), 0);
  EXPECT_EQ(rule.JoinedAt(50, 100), 0);
  EXPECT_EQ(rule.JoinedAt(51, 100), 2);
  EXPECT_EQ(rule.JoinedAt(99, 100), 98);
  for (const int64_t position : {int64_t{100}, int64_t{101}, int64_t{1} << 50}) {
    EXPECT_EQ(rule.JoinedAt(position, 100), position);
  }
  EXPECT_EQ(rule.JoinedAt(26, 51), 1);
}

TEST(PairSchedule, RecentTokensJoinLater) {
  const PairRule rule = {.pinned_tokens = 30, .recent_tokens = 20};
  EXPECT_EQ(rule.JoinedAt(50, 100), 0);
  EXPECT_EQ(rule.JoinedAt(51, 100), 2);
  EXPECT_EQ(rule.JoinedAt(80, 100), 60);
  EXPECT_EQ(rule.JoinedAt(90, 100), 70);
  EXPECT_EQ(rule.JoinedAt(1000, 100), 980);
  // A small cap limits the recent tokens to half of it.
  EXPECT_EQ(rule.JoinedAt(1000, 30), 985);
  EXPECT_EQ(rule.EffectivePinnedTokens(100), 25);
  EXPECT_EQ(rule.EffectivePinnedTokens(120), 30);
  EXPECT_EQ(rule.EffectivePinnedTokens(2), 0);
}

TEST(PairSchedule, MergesLeaveTheCapAtTheChunksEndTwoATokenAtMost) {
  const std::vector<PairRule> rules = {{}, {.pinned_tokens = 4, .recent_tokens = 9}};
  for (const auto& [cap, rule] : std::vector<std::pair<int64_t, PairRule>>{{2, rules[0]},
                                                                           {2, rules[1]},
                                                                           {7, rules[1]},
                                                                           {16, rules[0]},
                                                                           {17, rules[1]},
                                                                           {40, rules[0]},
                                                                           {40, rules[1]}}) {
    for (int64_t begin = 0; begin < 96; begin += 16) {
      const PairChunk chunk = {.session = nullptr,
                               .kv_head = 0,
                               .begin = begin,
                               .length = 16,
                               .slot_cap = cap,
                               .n_slots = static_cast<int32_t>(std::min(begin, cap)),
                               .n_slots_next = static_cast<int32_t>(std::min(begin + 16, cap)),
                               .rule = rule};
      EXPECT_EQ(chunk.MergedAt(0), 0);
      EXPECT_EQ(chunk.n_slots + 16 - chunk.MergedAt(16), chunk.n_slots_next);
      for (int64_t offset = 0; offset < 16; ++offset) {
        const int64_t merges = chunk.MergedAt(offset + 1) - chunk.MergedAt(offset);
        EXPECT_GE(merges, 0);
        EXPECT_LE(merges, 2);
        // Before any merge: enough candidates have joined for all merges, with two left for each.
        if (merges == 0) continue;
        const int64_t joined = chunk.JoinedAt(offset + 1),
                      candidates = joined - begin + chunk.n_slots - rule.EffectivePinnedTokens(cap);
        EXPECT_EQ(joined, begin + offset + 1 - rule.EffectiveRecentTokens(cap));
        EXPECT_GE(candidates - chunk.MergedAt(offset + 1), 1);
      }
    }
  }
}

TEST(PairMeans, CountsStayAtTheLargest) {
  EXPECT_EQ(AddCounts(3, 4), 7u);
  EXPECT_EQ(AddCounts(0xfffffffeu, 1), 0xffffffffu);
  EXPECT_EQ(AddCounts(0xffffffffu, 0xffffffffu), 0xffffffffu);
  EXPECT_EQ(HighShare(3, 1), 0.25f);
  EXPECT_NEAR(HighShare(0xffffffffu, 0xffffffffu), 0.5f, 1e-7);
}

// Blocks of random candidates; some places are empty, some candidates are stale.
struct Candidates {
  Candidates(int n_blocks, int head_dim, int value_stride, uint32_t seed)
      : keys(static_cast<size_t>(n_blocks * head_dim) * kBlockSlots),
        values(static_cast<size_t>(n_blocks * value_stride) * kBlockSlots),
        bounds(static_cast<size_t>(n_blocks) * kBlockSlots),
        partners(bounds.size()),
        oldest(bounds.size()) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal;
    for (float& x : keys) x = normal(random);
    for (float& x : values) x = normal(random);
    for (size_t i = 0; i < partners.size(); ++i) {
      partners[i] = static_cast<int32_t>(random() % 3) - 1;
      bounds[i] = static_cast<float>(random() % 100);
      oldest[i] = static_cast<uint32_t>(i * 37 % partners.size());
    }
    for (int b = 0; b < n_blocks; ++b) {
      blocks.push_back({keys.data() + static_cast<ptrdiff_t>(b) * head_dim * kBlockSlots,
                        values.data() + static_cast<ptrdiff_t>(b) * value_stride * kBlockSlots,
                        bounds.data() + static_cast<ptrdiff_t>(b) * kBlockSlots,
                        partners.data() + static_cast<ptrdiff_t>(b) * kBlockSlots,
                        oldest.data() + static_cast<ptrdiff_t>(b) * kBlockSlots});
    }
  }
  Nearest FindNearest(const std::vector<float>& key, const std::vector<float>& value, int32_t self,
                      int32_t gone = -1) const {
    const auto head_dim = static_cast<int>(key.size());
    std::vector<float> distances(partners.size()), wide(key.size() * kBlockSlots);
    const float* of = key.data();
    float* to = distances.data();
    KeyDistancesCpu({.dtype = DType::kF32,
                     .head_dim = head_dim,
                     .blocks = blocks,
                     .keys = {&of, 1},
                     .distances = {&to, 1},
                     .wide = wide.data()});
    return FindNearestCpu({.dtype = DType::kF32,
                           .value_stride = static_cast<int>(value.size()),
                           .blocks = blocks,
                           .key_distances = distances.data(),
                           .value_scale = 0.25f,
                           .value = value.data(),
                           .self = self,
                           .gone = {gone, -1}});
  }
  std::vector<float> keys, values, bounds;
  std::vector<int32_t> partners;
  std::vector<uint32_t> oldest;
  std::vector<CandidateBlock> blocks;
};

TEST(FindNearest, MatchesPlainLoops) {
  constexpr int kValueStride = 32;
  for (const int head_dim : {5, 16, 40}) {
    for (uint32_t seed = 0; seed < 20; ++seed) {
      Candidates all(3, head_dim, kValueStride, seed);
      std::mt19937 random(seed + 100);
      std::normal_distribution<float> normal;
      std::vector<float> key(static_cast<size_t>(head_dim)), value(kValueStride);
      for (float& x : key) x = normal(random);
      for (float& x : value) x = normal(random);
      const auto n = static_cast<int32_t>(all.partners.size()), self = n / 2;
      all.partners[static_cast<size_t>(self)] = 0;
      const std::vector<float> bounds = all.bounds;
      const std::vector<int32_t> partners = all.partners;
      const Nearest nearest = all.FindNearest(key, value, self);
      double smallest = std::numeric_limits<double>::infinity();
      int32_t expected = -1;
      for (int32_t i = 0; i < n; ++i) {
        const int64_t block = i / kBlockSlots, slot = i % kBlockSlots;
        double distance = 0;
        for (int c = 0; c < head_dim; ++c) {
          const double apart = key[c] - all.keys[(block * head_dim + c) * kBlockSlots + slot];
          distance += apart * apart;
        }
        for (int c = 0; c < kValueStride; ++c) {
          const double apart = value[c] - all.values[i * kValueStride + c];
          distance += 0.25 * apart * apart;
        }
        if (partners[i] != 0 && distance < smallest) {
          smallest = distance;
          expected = i;
        }
        EXPECT_EQ(all.partners[i], partners[i]);
        EXPECT_EQ(all.bounds[i], bounds[i]);
      }
      // Float32 sums of about 70 squares: the tolerance is 1e-5 of the distance.
      EXPECT_EQ(nearest.candidate, expected);
      EXPECT_NEAR(nearest.distance, smallest, 1e-5 * smallest);
    }
  }
}

TEST(FindNearest, NobodyIsNearest) {
  Candidates all(1, 4, 16, 1);
  std::ranges::fill(all.partners, 0);
  const Nearest nearest = all.FindNearest(std::vector<float>(4), std::vector<float>(16), 7);
  EXPECT_EQ(nearest.candidate, -1);
  EXPECT_TRUE(std::isinf(nearest.distance));
}

TEST(FindNearest, OfEquallyNearOnesTheOldestIsNearest) {
  Candidates all(2, 4, 16, 1);
  std::ranges::fill(all.keys, 0.0f);
  std::ranges::fill(all.values, 0.0f);
  std::ranges::fill(all.partners, 3);
  std::ranges::fill(all.bounds, 0.0f);
  all.oldest[90] = 0;
  all.oldest[0] = 90;
  const Nearest nearest = all.FindNearest(std::vector<float>(4), std::vector<float>(16), 200);
  EXPECT_EQ(nearest.candidate, 90);
  EXPECT_EQ(nearest.distance, 0.0f);
}

// A stale bound of 0 may hide an older equal candidate. A candidate whose partner has just been
// merged into `self` hides none.
TEST(FindNearest, OfEqualOnesThoseTakeItThatHaveNoOlderPartner) {
  Candidates all(1, 4, 16, 1);
  std::ranges::fill(all.keys, 0.0f);
  std::ranges::fill(all.values, 0.0f);
  std::ranges::fill(all.bounds, 0.0f);
  std::ranges::fill(all.partners, 3);
  all.partners[5] = kStalePartner;
  all.partners[6] = 11;
  all.partners[7] = kStalePartner;
  all.bounds[7] = 1.0f;
  all.FindNearest(std::vector<float>(4), std::vector<float>(16), 63, /*gone=*/10);
  EXPECT_EQ(all.partners[4], 3);
  EXPECT_EQ(all.partners[5], kStalePartner);
  EXPECT_EQ(all.partners[6], 64);
  EXPECT_EQ(all.partners[7], 64);
  EXPECT_EQ(all.bounds[7], 0.0f);
}

TEST(KeyDistances, AreTheSameBitsInAnyCompany) {
  constexpr int kDim = 20;
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    const Candidates all(3, kDim, 16, 4);
    std::vector<BF16> narrow(all.keys.size());
    std::ranges::transform(all.keys, narrow.begin(), RoundToBF16);
    std::vector<CandidateBlock> blocks = all.blocks;
    for (size_t b = 0; dtype == DType::kBF16 && b < blocks.size(); ++b) {
      blocks[b].keys = narrow.data() + b * kDim * kBlockSlots;
    }
    constexpr size_t kMost = 7;
    const std::vector<float> keys = RandomRows(kMost * kDim / kModelDim + 1, 8);
    std::vector<float> wide(kDim * kBlockSlots);
    std::vector<std::vector<float>> alone(kMost, std::vector<float>(all.partners.size())),
        together = alone;
    std::vector<const float*> of;
    std::vector<float*> to;
    for (size_t i = 0; i < kMost; ++i) {
      of.push_back(keys.data() + i * kDim);
      to.push_back(together[i].data());
      float* one = alone[i].data();
      KeyDistancesCpu({dtype, kDim, blocks, {&of[i], 1}, {&one, 1}, wide.data()});
    }
    for (size_t n = 2; n <= kMost; ++n) {
      for (std::vector<float>& row : together) std::ranges::fill(row, -1.0f);
      KeyDistancesCpu({dtype, kDim, blocks, {of.data(), n}, {to.data(), n}, wide.data()});
      for (size_t i = 0; i < n; ++i) EXPECT_EQ(together[i], alone[i]) << n << " " << i;
    }
  }
}

TEST(LowestBound, StaleOnesFirstThenPairsOfTheOldest) {
  Candidates all(2, 4, 16, 1);
  std::ranges::fill(all.partners, 0);
  const auto set = [&](size_t i, float bound, int32_t partner, uint32_t oldest) {
    all.bounds[i] = bound;
    all.partners[i] = partner;
    all.oldest[i] = oldest;
  };
  EXPECT_EQ(LowestBoundCpu(all.blocks).high, -1);
  set(3, 2, 71, 9);
  set(70, 3, 4, 8);
  set(80, 2, 101, 2);
  set(100, 2, 4, 7);
  set(12, 2, 81, 5);
  const PairBound lowest = LowestBoundCpu(all.blocks);
  EXPECT_EQ(lowest.bound, 2);
  EXPECT_EQ(lowest.low, 80);  // its oldest token is 2, those of the others are 5 and 7
  EXPECT_EQ(lowest.high, 12);
  set(90, 2, kStalePartner, 11);
  EXPECT_EQ(LowestBoundCpu(all.blocks).low, -1);
  EXPECT_EQ(LowestBoundCpu(all.blocks).high, 90);
}

TEST(NearestOnes, AreCandidatesInAscendingOrder) {
  Candidates all(2, 4, 16, 1);
  std::ranges::fill(all.partners, 0);
  std::vector<float> distances(all.partners.size(), 1.0f);
  for (const auto& [i, distance] :
       std::vector<std::pair<size_t, float>>{{3, 2}, {12, 2}, {70, 4}, {80, 3}, {90, 0}}) {
    all.partners[i] = kStalePartner;
    distances[i] = distance;
  }
  const auto nearest = [&](size_t most) {
    std::vector<Nearest> found(most);
    found.resize(static_cast<size_t>(NearestOnesCpu(all.blocks, distances.data(), found)));
    std::vector<int32_t> candidates;
    for (const Nearest& one : found) candidates.push_back(one.candidate);
    return candidates;
  };
  EXPECT_EQ(nearest(10), (std::vector<int32_t>{90, 3, 12, 80, 70}));
  EXPECT_EQ(nearest(2), (std::vector<int32_t>{90, 3}));
}

}  // namespace
}  // namespace ovq::kernels::test
