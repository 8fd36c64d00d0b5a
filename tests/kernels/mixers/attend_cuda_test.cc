// Attention over blocks on CUDA: close to the reference, and bit for bit equal to itself however
// the tokens are batched and the work is divided.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "tests/kernels/mixers/attend_configs.h"
#include "tests/reference/mixers/attention_ref.h"

namespace ovq::kernels {
namespace {

using cuda::Split;
using test::AttendConfig;
using test::Full;
using test::kBeta;
using test::kBF16;
using test::kF32;
using test::kI8;
using test::Ovq;
using test::Sessions;
using test::Sliding;
using test::TokenRow;

constexpr int64_t kFar = (int64_t{1} << 40) + 7;

// One session's tokens as the reference sees them, by position.
class History {
 public:
  History(const AttendConfig& config, int index, const Sessions::Session& session)
      : config_(config), begin_(config.oldest(session.start)) {
    const int64_t end = session.start + session.n_tokens;
    const auto blocks = static_cast<size_t>(NumBlocks(end - begin_) * config.n_kv_heads);
    keys_.resize(blocks * static_cast<size_t>(config.key_bytes()));
    values_.resize(blocks * static_cast<size_t>(config.value_bytes()));
    for (int64_t t = begin_; t < end; ++t) {
      const std::vector<float> row = TokenRow(config, index, t);
      const float* key = row.data() + int64_t{config.n_heads} * config.head_dim;
      const float* value = key + int64_t{config.n_kv_heads} * config.head_dim;
      for (int h = 0; h < config.n_kv_heads; ++h) {
        const SlotRef at = Slot(t, h);
        StoreKey(key + int64_t{h} * config.head_dim, config.head_dim, config.dtype,
                 const_cast<void*>(at.keys), at.slot);
        StoreValue(value + int64_t{h} * config.value_head_dim, config.value_head_dim,
                   config.value_stride(), config.dtype, const_cast<void*>(at.values), at.slot);
      }
    }
  }

  SlotRef Slot(int64_t t, int head) const {
    const int64_t block = (t - begin_) / kBlockSlots * config_.n_kv_heads + head;
    return {keys_.data() + block * config_.key_bytes(),
            values_.data() + block * config_.value_bytes(),
            static_cast<int>((t - begin_) % kBlockSlots), 0};
  }

 private:
  const AttendConfig& config_;
  int64_t begin_;
  std::vector<std::byte> keys_, values_;
};

std::vector<SlotRef> Dictionary(const AttendConfig& config, const Sessions& sessions,
                                Sessions::Session& session, int head, int64_t t) {
  std::vector<SlotRef> slots;
  std::byte* state = session.host.data();
  for (int64_t j = 0; j < config.live_at(t); ++j) {
    const int64_t b = j / kBlockSlots;
    const int slot = static_cast<int>(j % kBlockSlots);
    slots.push_back({sessions.At<void>(state, sessions.blocks().dictionary_keys, head, b),
                     sessions.At<void>(state, sessions.blocks().dictionary_values, head, b), slot,
                     sessions.At<float>(state, sessions.blocks().dictionary_bias, head, b)[slot]});
  }
  return slots;
}

// The tolerance of a row's output. A score has an error of at most (head_dim + 2) u |q| |k| from
// its chain of products and sums, |q| |k| <= 2 beta, and 4 |s| u from bias, unit, maximum and
// exponential, |s| <= 2 beta + ln 9: so a weight is off by a factor 1 + e. e counts twice, in the
// weighted sum of the values and in the sum of the weights, and so does the 2^-9 of a weight that
// is rounded to bfloat16. Each sum of 64 n_blocks terms adds one rounding per term, on tensor cores
// one that may be twice as large. No |value| here is larger than 5.
double Tolerance(const AttendConfig& config, int64_t n_slots) {
  constexpr double kLargestValue = 5;
  const double weight = (2 * kBeta * (config.head_dim + 2) + 4 * 16) * test::kRoundF32;
  const double sums = 2.0 * static_cast<double>(n_slots) * test::kRoundF32;
  const double rounded = config.tensor_cores() ? test::kRoundBF16 : 0;
  return kLargestValue * 2 * (weight + sums + rounded);
}

void ExpectLikeReference(const AttendConfig& config, Sessions& sessions) {
  const auto dv = static_cast<size_t>(config.value_head_dim);
  for (size_t s = 0; s < sessions.list().size(); ++s) {
    Sessions::Session& session = sessions.list()[s];
    const History history(config, static_cast<int>(s), session);
    const int64_t begin = config.oldest(session.start);
    std::vector<float> expected;
    for (int i = 0; i < session.n_tokens; ++i) {
      const int64_t t = session.start + i;
      const std::vector<float> row = TokenRow(config, static_cast<int>(s), t);
      for (int h = 0; h < config.n_heads; ++h) {
        const int head = h / (config.n_heads / config.n_kv_heads);
        std::vector<SlotRef> slots = Dictionary(config, sessions, session, head, t);
        for (int64_t p = config.oldest(t); p <= t; ++p) slots.push_back(history.Slot(p, head));
        std::vector<float> out(dv);
        AttendSlotsRef(row.data() + int64_t{h} * config.head_dim, slots, config.dtype,
                       config.head_dim, config.value_head_dim, out.data());
        expected.insert(expected.end(), out.begin(), out.end());
      }
    }
    const int64_t n_slots = config.n_slots + session.start + session.n_tokens - begin;
    test::AssertClose(session.out, expected, Tolerance(config, n_slots),
                      "session " + std::to_string(s));
  }
}

// Every probe's slot is one of those with the highest product, up to the error of a product.
void ExpectBestSlots(const AttendConfig& config, Sessions& sessions) {
  // Error of a product, |k| |key| <= 2; twice that on tensor cores.
  const double error = 2 * 2 * (config.head_dim + 2) * test::kRoundF32;
  for (size_t s = 0; s < sessions.list().size(); ++s) {
    Sessions::Session& session = sessions.list()[s];
    std::vector<std::byte> state = sessions.Fetch(session);
    // A later span writes over an earlier one.
    const int64_t end = session.start + session.n_tokens;
    for (int64_t t = std::max(session.start, end - config.wave_span); t < end; ++t) {
      const std::vector<float> row = TokenRow(config, static_cast<int>(s), t);
      for (int h = 0; h < config.n_kv_heads; ++h) {
        const float* key = row.data() + int64_t{config.n_heads + h} * config.head_dim;
        const int64_t i = t % config.wave_span;
        const float score = *sessions.At<float>(state.data(), {sessions.blocks().best_score}, h, i);
        const int32_t slot =
            *sessions.At<int32_t>(state.data(), {sessions.blocks().best_slot}, h, i);
        std::vector<double> scores;
        for (const SlotRef& at : Dictionary(config, sessions, session, h, t)) {
          scores.push_back(DotSlotRef(key, at.keys, config.dtype, config.head_dim, at.slot));
        }
        if (scores.empty()) {
          EXPECT_EQ(score, -std::numeric_limits<float>::infinity());
          EXPECT_EQ(slot, 0);
          continue;
        }
        const double best = *std::max_element(scores.begin(), scores.end());
        ASSERT_LT(static_cast<size_t>(slot), scores.size());
        EXPECT_NEAR(score, scores[slot], error) << "t " << t;
        EXPECT_GE(scores[slot], best - 2 * error) << "t " << t;
      }
    }
  }
}

class AttendTest : public ::testing::TestWithParam<AttendConfig> {
 protected:
  void SetUp() override {
    const std::string missing = test::WhyNoDevice(Device::kCuda);
    if (!missing.empty()) GTEST_SKIP() << missing;
    context_ = test::MakeContext(Device::kCuda);
  }

  // A few sessions, alone and side by side: in the middle of blocks, spans and rings.
  Sessions Make() {
    const AttendConfig& config = GetParam();
    const bool far = config.window > 0 || config.from_span;
    Sessions sessions(config, *context_, /*end=*/300);
    sessions.Add(0, 70);
    sessions.Add(far ? kFar : 270, 21);
    sessions.Add(130, 1);
    return sessions;
  }

  std::unique_ptr<DeviceContext> context_;
};

TEST_P(AttendTest, AgreesWithTheReferenceAndKeepsItsBits) {
  const AttendConfig& config = GetParam();
  Sessions whole = Make();
  whole.Run(1000, Split::kAuto);
  ExpectLikeReference(config, whole);
  if (config.probe) ExpectBestSlots(config, whole);
  struct Way {
    int batch_tokens;
    Split split;
  };
  for (const Way way : {Way{1000, Split::kAlways}, Way{1000, Split::kNever}, Way{1, Split::kAuto},
                        Way{1, Split::kNever}, Way{7, Split::kAuto}}) {
    Sessions other = Make();
    other.Run(way.batch_tokens, way.split);
    const std::string what = "steps of " + std::to_string(way.batch_tokens) + ", split " +
                             std::to_string(static_cast<int>(way.split));
    for (size_t s = 0; s < other.list().size(); ++s) {
      test::AssertSameBits(other.list()[s].out, whole.list()[s].out, what);
      const std::vector<std::byte> state = other.Fetch(other.list()[s]);
      EXPECT_EQ(state, whole.Fetch(whole.list()[s])) << what;
      // Tokens are in their slots and nothing else has changed.
      const auto tokens = static_cast<size_t>(other.probe_begin());
      EXPECT_EQ(std::memcmp(state.data(), other.list()[s].host.data(), tokens), 0) << what;
    }
  }
}

// The second segment has no open slot, and the third begins with a block that has none.
AttendConfig Closed(std::string name, DType dtype, int closed_from) {
  return {.name = std::move(name),
          .n_heads = 2,
          .n_kv_heads = 1,
          .head_dim = 16,
          .value_head_dim = 16,
          .dtype = dtype,
          .compute_dtype = test::ComputeFor(dtype),
          .wave_span = 64,
          .n_slots = 560,
          .from_span = true,
          .closed_from = closed_from};
}

INSTANTIATE_TEST_SUITE_P(Float32, AttendTest,
                         ::testing::Values(Ovq("ovq", 2, 2, 20, 24, kF32, kF32, 48, 300),
                                           Ovq("ovq_group5", 5, 1, 32, 17, kBF16, kF32, 40, 90),
                                           Ovq("ovq_wide", 1, 1, 300, 272, kF32, kF32, 64, 70),
                                           Sliding("sliding", 2, 1, 20, 32, kF32, kF32, 100),
                                           Sliding("sliding_bf16", 1, 1, 33, 16, kBF16, kBF16, 1),
                                           Ovq("ovq_i8", 2, 2, 20, 24, kI8, kF32, 48, 300),
                                           Ovq("ovq_group5_i8", 5, 1, 32, 17, kI8, kF32, 40, 90),
                                           Ovq("ovq_wide_i8", 1, 1, 300, 272, kI8, kF32, 64, 70),
                                           Sliding("sliding_i8", 1, 1, 33, 16, kI8, kBF16, 1),
                                           Full("full_i8", 2, 1, 32, 20, kI8, kF32),
                                           Full("full", 2, 1, 32, 20, kF32, kBF16),
                                           Closed("closed", kF32, 256),
                                           Closed("all_closed", kF32, 0)),
                         [](const auto& info) { return info.param.name; });

INSTANTIATE_TEST_SUITE_P(
    TensorCores, AttendTest,
    ::testing::Values(Ovq("ovq", 2, 2, 64, 48, kBF16, kBF16, 48, 330),
                      Ovq("ovq_group5", 5, 1, 32, 64, kBF16, kBF16, 128, 90),
                      Ovq("ovq_group17", 17, 1, 16, 20, kBF16, kBF16, 64, 100),
                      Ovq("ovq_wide", 1, 1, 128, 128, kBF16, kBF16, 64, 280),
                      Ovq("ovq_widest", 1, 1, 256, 240, kBF16, kBF16, 32, 70),
                      Sliding("sliding", 2, 1, 64, 32, kBF16, kBF16, 193),
                      Full("full", 2, 1, 32, 96, kBF16, kBF16),
                      Ovq("ovq_i8", 2, 2, 64, 48, kI8, kBF16, 48, 330),
                      Ovq("ovq_group5_i8", 5, 1, 32, 64, kI8, kBF16, 128, 90),
                      Ovq("ovq_group17_i8", 17, 1, 16, 20, kI8, kBF16, 64, 100),
                      Ovq("ovq_wide_i8", 1, 1, 128, 128, kI8, kBF16, 64, 280),
                      Ovq("ovq_widest_i8", 1, 1, 256, 240, kI8, kBF16, 32, 70),
                      Sliding("sliding_i8", 2, 1, 64, 32, kI8, kBF16, 193),
                      Full("full_i8", 2, 1, 32, 96, kI8, kBF16), Closed("closed_i8", kI8, 256),
                      Closed("closed", kBF16, 256), Closed("all_closed", kBF16, 0)),
    [](const auto& info) { return info.param.name; });

// The benchmark's batch: 64 sessions with full dictionaries in different phases of their chunks,
// nine segments to a tile. The last of nine thread blocks, whichever it is, folds the parts of all,
// so one run proves little.
class AttendFullDictionaries : public ::testing::TestWithParam<DType> {};

TEST_P(AttendFullDictionaries, SplitStepsKeepTheirBitsWhateverTheOrderOfBlocks) {
  const std::string missing = test::WhyNoDevice(Device::kCuda);
  if (!missing.empty()) GTEST_SKIP() << missing;
  constexpr int kSessions = 64, kChunk = 128;
  constexpr int64_t kPosition = 10'240'000;
  const AttendConfig config =
      Ovq("full", 1, 1, 128, 128, GetParam(), test::ComputeFor(GetParam()), kChunk, /*cap=*/2048);
  ASSERT_EQ((NumBlocks(config.live_at(kPosition)) + 1 + cuda::kCudaSegmentBlocks - 1) /
                cuda::kCudaSegmentBlocks,
            9);
  const std::unique_ptr<DeviceContext> context = test::MakeContext(Device::kCuda);
  Sessions sessions(config, *context, /*end=*/0);
  for (int s = 0; s < kSessions; ++s) sessions.Add(kPosition + 2 * s, 1);
  const auto run = [&](Split split) {
    sessions.Restart();
    sessions.Run(1, split);
    std::vector<std::byte> all;
    for (const Sessions::Session& session : sessions.list()) {
      const auto* out = reinterpret_cast<const std::byte*>(session.out.data());
      all.insert(all.end(), out, out + session.out.size() * sizeof(float));
      const std::vector<std::byte> state = sessions.Fetch(session);
      all.insert(all.end(), state.begin(), state.end());
    }
    return all;
  };
  const std::vector<std::byte> expected = run(Split::kNever);
  for (size_t s = 0; s < kSessions; s += 21) {
    const std::vector<float>& out = sessions.list()[s].out;
    EXPECT_TRUE(std::ranges::any_of(out, [](float x) { return x != 0; })) << "session " << s;
  }
  // Blocks of the executor run one after another, so there a few runs say all.
  const int repeats = context->Gpu()->name == "host executor" ? 2 : 30;
  for (int i = 0; i < repeats; ++i) {
    EXPECT_TRUE(run(Split::kAuto) == expected) << "run " << i;
  }
}

INSTANTIATE_TEST_SUITE_P(DTypes, AttendFullDictionaries, ::testing::Values(kF32, kBF16, kI8),
                         [](const auto& info) { return DTypeName(info.param); });

// Equal keys in several slots of the dictionary: the lowest wins, wherever they are.
class AttendTies : public ::testing::TestWithParam<DType> {};

TEST_P(AttendTies, GoToTheLowestSlot) {
  const std::string missing = test::WhyNoDevice(Device::kCuda);
  if (!missing.empty()) GTEST_SKIP() << missing;
  const int d = 32;
  const AttendConfig config = {.name = "ties",
                               .n_heads = 1,
                               .n_kv_heads = 1,
                               .head_dim = d,
                               .value_head_dim = 16,
                               .dtype = GetParam(),
                               .compute_dtype = test::ComputeFor(GetParam()),
                               .wave_span = 64,
                               .n_slots = 560,
                               .from_span = true,
                               .probe = true};
  // Within a pair of columns, a thread's columns, a warp's slots, a block, a segment, and beyond.
  const std::vector<std::vector<int>> ties = {{4, 5},       {8, 16},    {0, 63},    {17, 81},
                                              {30, 255},    {100, 256}, {300, 559}, {511, 512},
                                              {7, 71, 500}, {201, 203}};
  const std::unique_ptr<DeviceContext> context = test::MakeContext(Device::kCuda);
  for (const Split split : {Split::kAlways, Split::kNever}) {
    for (const int batch_tokens : {1, 64}) {
      Sessions sessions(config, *context, 64);
      sessions.Add(0, static_cast<int>(ties.size()));
      sessions.Edit([&](std::byte* state) {
        for (size_t i = 0; i < ties.size(); ++i) {
          const std::vector<float> row = TokenRow(config, 0, static_cast<int64_t>(i));
          for (const int slot : ties[i]) {
            StoreKey(
                row.data() + d, d, config.dtype,
                sessions.At<void>(state, sessions.blocks().dictionary_keys, 0, slot / kBlockSlots),
                slot % kBlockSlots);
          }
        }
      });
      sessions.Run(batch_tokens, split);
      std::vector<std::byte> state = sessions.Fetch(sessions.list()[0]);
      for (size_t i = 0; i < ties.size(); ++i) {
        EXPECT_EQ(*sessions.At<int32_t>(state.data(), {sessions.blocks().best_slot}, 0,
                                        static_cast<int64_t>(i)),
                  ties[i][0]);
        // |key|^2; a key of unit norm is off by 2^-9 of its length at most after rounding, in
        // int8 by half a unit a channel, of which 64 to 127 are the largest.
        EXPECT_NEAR(*sessions.At<float>(state.data(), {sessions.blocks().best_score}, 0,
                                        static_cast<int64_t>(i)),
                    1.0f, config.dtype == kI8 ? 0x1p-6f : 3 * test::kRoundBF16);
      }
    }
  }
}
INSTANTIATE_TEST_SUITE_P(DTypes, AttendTies, ::testing::Values(kF32, kBF16, kI8),
                         [](const auto& info) { return DTypeName(info.param); });

}  // namespace
}  // namespace ovq::kernels
