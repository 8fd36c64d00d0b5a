// Attention over blocks on CUDA, in the host executor: against the reference, and bit for bit
// against itself however the rows come and however the work is divided.
#include "kernels/mixers/common/cuda/attend.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <optional>
#include <string>
#include <vector>

#include "kernels/mixers/common/attention_ref.h"
#include "kernels/mixers/common/block_attention.h"
#include "kernels/mixers/stage.h"
#include "tests/test_util.h"

namespace ovq {
namespace {

using cuda::AttentionBlocks;
using cuda::BlockPlaces;
using cuda::Split;

constexpr float kBeta = 6;  // of the queries: |q| = beta, |k| = 1
constexpr int64_t kFar = (int64_t{1} << 40) + 7;

struct Config {
  std::string name;
  int n_heads, n_kv_heads, head_dim, value_head_dim;
  DType dtype, compute_dtype;
  int wave_span;
  AttentionBlocks::Live live = AttentionBlocks::Live::kNone;
  int n_slots = 0;  // fixed_live, or the cap
  bool from_span = false;
  int window = 0;
  bool probe = false;

  int value_stride() const { return ValueStride(value_head_dim); }
  int64_t key_bytes() const { return int64_t{head_dim} * kBlockSlots * DTypeBytes(dtype); }
  int64_t value_bytes() const { return int64_t{value_stride()} * kBlockSlots * DTypeBytes(dtype); }
  int32_t ring() const { return window == 0 ? 0 : static_cast<int32_t>(1 + BlocksFor(window - 1)); }
  int64_t live_at(int64_t t) const {
    switch (live) {
      case AttentionBlocks::Live::kNone:
        return 0;
      case AttentionBlocks::Live::kFixed:
        return n_slots;
      case AttentionBlocks::Live::kCentroids:
        return CentroidsAt(t / wave_span * wave_span, n_slots);
    }
    return 0;
  }
  int64_t origin(int64_t t) const { return from_span ? t / wave_span * wave_span : 0; }
  // The oldest recent token that a query at t meets.
  int64_t oldest(int64_t t) const {
    return window > 0 ? std::max<int64_t>(0, t - window + 1) : origin(t);
  }
  bool tensor_cores() const { return dtype == DType::kBF16 && compute_dtype == DType::kBF16; }
};

void PrintTo(const Config& config, std::ostream* out) { *out << config.name; }

// What a token brings: [n_heads + n_kv_heads][head_dim], [n_kv_heads][value_head_dim].
std::vector<float> TokenRow(const Config& config, int session, int64_t t) {
  const auto vectors = static_cast<size_t>(config.n_heads + config.n_kv_heads);
  const auto d = static_cast<size_t>(config.head_dim);
  const size_t n_values = static_cast<size_t>(config.n_kv_heads) * config.value_head_dim;
  std::vector<float> row = test::RandomNormal(
      vectors * d + n_values, static_cast<uint64_t>(t) * 16 + static_cast<uint64_t>(session));
  for (size_t i = 0; i < vectors; ++i) {
    float square = 0;
    for (size_t c = 0; c < d; ++c) square += row[i * d + c] * row[i * d + c];
    const bool is_query = i < static_cast<size_t>(config.n_heads);
    const float scale = (is_query ? kBeta : 1.0f) / std::sqrt(square);
    for (size_t c = 0; c < d; ++c) {
      float& x = row[i * d + c];
      x *= scale;
      if (config.compute_dtype == DType::kBF16) x = ToFloat(RoundToBF16(x));
    }
  }
  return row;
}

// Sessions in the memory of the device, and the same bytes on the host.
class Sessions {
 public:
  struct Session {
    int64_t start;
    int n_tokens;
    std::vector<std::byte> host;  // as it should be: every token stored as it comes
    Buffer device;
    int done = 0;
    std::vector<float> out;  // of the tokens done
  };

  // No session without a ring or a span goes beyond `end`.
  Sessions(const Config& config, DeviceContext& context, int64_t end)
      : config_(config), context_(context) {
    Place(end);
  }

  void Add(int64_t start, int n_tokens) {
    Session session = {.start = start, .n_tokens = n_tokens, .host = {}, .device = {}, .out = {}};
    const int index = static_cast<int>(sessions_.size());
    const std::vector<float> noise =
        test::RandomNormal(static_cast<size_t>(bytes_), 77 + static_cast<uint64_t>(index));
    session.host.resize(static_cast<size_t>(bytes_));
    FillNoise(session.host, noise);
    for (int64_t t = config_.oldest(start); t < start; ++t) Store(session, index, t);
    sessions_.push_back(std::move(session));
  }

  // Changes the host's bytes of all sessions before they are used.
  template <class Fn>
  void Edit(Fn fn) {
    for (Session& session : sessions_) fn(session.host.data());
  }

  // Feeds everybody's tokens, `step_tokens` of each session at a time, with padding if it is 1.
  void Run(int step_tokens, Split split) {
    for (Session& session : sessions_) {
      if (session.device.bytes() == 0) {
        session.device = context_.Upload(session.host.data(), session.host.size());
      }
    }
    while (Step(step_tokens, split)) {
    }
  }

  std::vector<Session>& list() { return sessions_; }
  const AttentionBlocks& blocks() const { return blocks_; }
  int64_t bytes() const { return bytes_; }

  // The host's copy of the device's bytes.
  std::vector<std::byte> Fetch(const Session& session) {
    std::vector<std::byte> bytes(session.host.size());
    context_.CopyToHost(bytes.data(), session.device.as<std::byte>(), bytes.size());
    return bytes;
  }
  template <class T>
  T* At(std::byte* state, const BlockPlaces& places, int head, int64_t i) const {
    if (places.ring > 0) i %= places.ring;
    return reinterpret_cast<T*>(state + places.offset + head * places.head_stride +
                                i * places.block_stride);
  }
  // Bytes that the probes write.
  int64_t probe_begin() const { return blocks_.best_score.offset; }

 private:
  void Place(int64_t end) {
    const int64_t heads = config_.n_kv_heads;
    blocks_.shape = {.d_model = 1,
                     .n_heads = config_.n_heads,
                     .n_kv_heads = config_.n_kv_heads,
                     .head_dim = config_.head_dim,
                     .value_head_dim = config_.value_head_dim};
    blocks_.dtype = config_.dtype;
    blocks_.compute_dtype = config_.compute_dtype;
    blocks_.wave_span = config_.wave_span;
    blocks_.live = config_.live;
    blocks_.fixed_live = config_.n_slots;
    blocks_.recent_from_span = config_.from_span;
    blocks_.window = config_.window;
    blocks_.probe = config_.probe;
    recent_ = config_.ring() > 0  ? config_.ring()
              : config_.from_span ? BlocksFor(config_.wave_span)
                                  : BlocksFor(end);
    const int64_t keys = config_.key_bytes(), values = config_.value_bytes();
    const int64_t ring = config_.ring();
    blocks_.recent_keys = {
        .head_stride = recent_ * keys, .block_stride = keys, .ring = static_cast<int32_t>(ring)};
    blocks_.recent_values = {.offset = heads * recent_ * keys,
                             .head_stride = recent_ * values,
                             .block_stride = values,
                             .ring = static_cast<int32_t>(ring)};
    dictionary_begin_ = heads * recent_ * (keys + values);
    const int64_t bias = kBlockSlots * sizeof(float), of_head = bias + keys + values;
    BlockPlaces place = {
        .offset = dictionary_begin_, .head_stride = of_head, .block_stride = heads * of_head};
    blocks_.dictionary_bias = place;
    place.offset += bias;
    blocks_.dictionary_keys = place;
    place.offset += keys;
    blocks_.dictionary_values = place;
    const int64_t dictionary = BlocksFor(config_.n_slots);
    const int64_t best = dictionary_begin_ + dictionary * heads * of_head;
    const int64_t span = std::max(config_.wave_span, 1);
    blocks_.best_score = {.offset = best, .head_stride = span * 4, .block_stride = 4};
    blocks_.best_slot = {
        .offset = best + heads * span * 4, .head_stride = span * 4, .block_stride = 4};
    bytes_ = best + 2 * heads * span * 4;
  }

  // Finite everywhere, as old contents of a slot are.
  void FillNoise(std::vector<std::byte>& bytes, const std::vector<float>& noise) const {
    const size_t element = DTypeBytes(config_.dtype);
    for (size_t i = 0; i * element < static_cast<size_t>(probe_begin()); ++i) {
      const BF16 rounded = RoundToBF16(noise[i] * 0.2f);
      std::memcpy(bytes.data() + i * element,
                  element == 2 ? static_cast<const void*>(&rounded) : &noise[i], element);
    }
    for (int64_t b = 0; b < BlocksFor(config_.n_slots); ++b) {
      for (int h = 0; h < config_.n_kv_heads; ++h) {
        float* bias = At<float>(bytes.data(), blocks_.dictionary_bias, h, b);
        for (int i = 0; i < kBlockSlots; ++i) bias[i] = std::log(1.0f + static_cast<float>(i % 9));
      }
    }
  }

  void Store(Session& session, int index, int64_t t) {
    const std::vector<float> row = TokenRow(config_, index, t);
    const float* key = row.data() + int64_t{config_.n_heads} * config_.head_dim;
    const float* value = key + int64_t{config_.n_kv_heads} * config_.head_dim;
    const int64_t at = t - config_.origin(t);
    const int slot = static_cast<int>(at % kBlockSlots);
    for (int h = 0; h < config_.n_kv_heads; ++h) {
      StoreKey(key + int64_t{h} * config_.head_dim, config_.head_dim, config_.dtype,
               At<void>(session.host.data(), blocks_.recent_keys, h, at / kBlockSlots), slot);
      StoreValue(value + int64_t{h} * config_.value_head_dim, config_.value_head_dim,
                 config_.value_stride(), config_.dtype,
                 At<void>(session.host.data(), blocks_.recent_values, h, at / kBlockSlots), slot);
    }
  }

  bool Step(int step_tokens, Split split) {
    std::vector<int32_t> row_begin = {0}, caps;
    std::vector<int64_t> start_pos;
    std::vector<std::byte*> states;
    std::vector<float> rows;
    std::vector<size_t> owners;
    const size_t n_row = TokenRow(config_, 0, 0).size();
    for (size_t s = 0; s < sessions_.size(); ++s) {
      Session& session = sessions_[s];
      const int n = std::min(step_tokens, session.n_tokens - session.done);
      if (n == 0) continue;
      if (step_tokens == 1) {
        rows.resize(rows.size() + n_row, std::numeric_limits<float>::quiet_NaN());
        row_begin.push_back(row_begin.back() + 1);
        start_pos.push_back(0);
        caps.push_back(config_.n_slots);
        states.push_back(nullptr);
        owners.push_back(sessions_.size());
      }
      for (int i = 0; i < n; ++i) {
        const int64_t t = session.start + session.done + i;
        const std::vector<float> row = TokenRow(config_, static_cast<int>(s), t);
        rows.insert(rows.end(), row.begin(), row.end());
        Store(session, static_cast<int>(s), t);
      }
      row_begin.push_back(row_begin.back() + n);
      start_pos.push_back(session.start + session.done);
      caps.push_back(config_.n_slots);
      states.push_back(session.device.as<std::byte>());
      owners.push_back(s);
    }
    if (owners.empty()) return false;
    StepSeqs seqs = {.row_begin = row_begin,
                     .start_pos = start_pos,
                     .max_centroids = caps,
                     .state = states,
                     .device = {}};
    // As in a recorded step: bounds for more than is there.
    if (step_tokens == 1 && config_.wave_span > 0) seqs.end_bound = kFar * 2;
    const StagedStep staged = StageStep(context_, seqs);
    const size_t n_out = static_cast<size_t>(config_.n_heads) * config_.value_head_dim;
    const Buffer in = context_.Upload(rows.data(), rows.size() * sizeof(float));
    const std::vector<float> none(static_cast<size_t>(row_begin.back()) * n_out, -1.0f);
    const Buffer out = context_.Upload(none.data(), none.size() * sizeof(float));
    const auto k = int64_t{config_.n_heads} * config_.head_dim;
    const AttentionRows attention_rows = {
        .q = in.as<float>(),
        .k = in.as<float>() + k,
        .v = in.as<float>() + k + int64_t{config_.n_kv_heads} * config_.head_dim,
        .stride = static_cast<int64_t>(n_row),
        .out = out.as<float>(),
        .out_dtype = DType::kF32};
    const int n_waves = cuda::Waves(staged.seqs, config_.wave_span);
    for (int wave = 0; wave < n_waves; ++wave) {
      cuda::StoreRecent(context_, blocks_, staged.seqs, attention_rows, wave);
      cuda::AttendWave(context_, blocks_, staged.seqs, attention_rows, wave, split);
    }
    std::vector<float> outs(none.size());
    context_.CopyToHost(outs.data(), out.as<float>(), outs.size() * sizeof(float));
    for (size_t i = 0; i < owners.size(); ++i) {
      const auto begin = outs.begin() + static_cast<int64_t>(row_begin[i] * n_out);
      const auto end = outs.begin() + static_cast<int64_t>(row_begin[i + 1] * n_out);
      if (owners[i] == sessions_.size()) continue;
      Session& session = sessions_[owners[i]];
      session.out.insert(session.out.end(), begin, end);
      session.done += row_begin[i + 1] - row_begin[i];
    }
    return true;
  }

  const Config& config_;
  DeviceContext& context_;
  AttentionBlocks blocks_;
  int64_t recent_ = 0, dictionary_begin_ = 0, bytes_ = 0;
  std::vector<Session> sessions_;
};

// One session's tokens as the reference sees them, by position.
class History {
 public:
  History(const Config& config, int index, const Sessions::Session& session)
      : config_(config), begin_(config.oldest(session.start)) {
    const int64_t end = session.start + session.n_tokens;
    const auto blocks = static_cast<size_t>(BlocksFor(end - begin_) * config.n_kv_heads);
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
  const Config& config_;
  int64_t begin_;
  std::vector<std::byte> keys_, values_;
};

std::vector<SlotRef> Dictionary(const Config& config, const Sessions& sessions,
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

// How far a row's output may be from the exact one, relative to the largest |value|. A score s with
// |q| |k| <= beta has an error of at most (head_dim + 2) u beta from its chain of products and
// sums, |s| u <= 8 u from bias, unit and difference; so a weight is off by the factor
// 1 + e, e = (beta (head_dim + 2) + 24) u, and by another 2^-9 where it is rounded to bfloat16
// (2^-8 for a factor of both the sum and the weighted sum). Each of the at most 64 blocks adds
// 2 * 64 roundings to the sums, tensor cores with twice the error of a rounding to nearest.
double Tolerance(const Config& config) {
  const double weight = (kBeta * (config.head_dim + 2) + 24) * test::kRoundF32;
  const double sums = 64 * 2 * 64 * 2 * test::kRoundF32;
  return 2 * weight + sums + (config.tensor_cores() ? 2 * test::kRoundBF16 : 0);
}

void ExpectLikeReference(const Config& config, Sessions& sessions) {
  const auto dv = static_cast<size_t>(config.value_head_dim);
  for (size_t s = 0; s < sessions.list().size(); ++s) {
    Sessions::Session& session = sessions.list()[s];
    const History history(config, static_cast<int>(s), session);
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
    // No |value| of these normal ones is larger than 5.
    test::AssertClose(session.out, expected, Tolerance(config) * 5, "session " + std::to_string(s));
  }
}

// Every probe's slot is one of those with the highest product, up to the error of a product.
void ExpectBestSlots(const Config& config, Sessions& sessions) {
  const double error = 2.0 * (config.head_dim + 2) * test::kRoundF32;
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
        const float score = *sessions.At<float>(state.data(), sessions.blocks().best_score, h, i);
        const int32_t slot = *sessions.At<int32_t>(state.data(), sessions.blocks().best_slot, h, i);
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
        EXPECT_NEAR(score, scores[slot], error * 4) << "t " << t;
        EXPECT_GE(scores[slot], best - error * 4) << "t " << t;
      }
    }
  }
}

class AttendTest : public ::testing::TestWithParam<Config> {
 protected:
  void SetUp() override { context_ = test::MakeContext(Device::kCuda); }

  // A few sessions, alone and side by side: in the middle of blocks, spans and rings.
  Sessions Make() {
    const Config& config = GetParam();
    const bool far = config.window > 0 || config.from_span;
    Sessions sessions(config, *context_, /*end=*/300);
    sessions.Add(0, 70);
    sessions.Add(far ? kFar : 200, 21);
    sessions.Add(130, 1);
    return sessions;
  }

  std::unique_ptr<DeviceContext> context_;
};

TEST_P(AttendTest, AgreesWithTheReferenceAndKeepsItsBits) {
  const Config& config = GetParam();
  Sessions whole = Make();
  whole.Run(1000, Split::kAuto);
  ExpectLikeReference(config, whole);
  if (config.probe) ExpectBestSlots(config, whole);
  struct Way {
    int step_tokens;
    Split split;
  };
  for (const Way way : {Way{1000, Split::kAlways}, Way{1000, Split::kNever}, Way{1, Split::kAuto},
                        Way{1, Split::kNever}, Way{7, Split::kAuto}}) {
    Sessions other = Make();
    other.Run(way.step_tokens, way.split);
    const std::string what = "steps of " + std::to_string(way.step_tokens) + ", split " +
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

constexpr DType kF32 = DType::kF32, kBF16 = DType::kBF16;
constexpr AttentionBlocks::Live kNone = AttentionBlocks::Live::kNone,
                                kCentroids = AttentionBlocks::Live::kCentroids,
                                kFixed = AttentionBlocks::Live::kFixed;

Config Ovq(std::string name, int n_heads, int n_kv_heads, int d, int dv, DType dtype, DType compute,
           int chunk, int cap) {
  return {.name = std::move(name),
          .n_heads = n_heads,
          .n_kv_heads = n_kv_heads,
          .head_dim = d,
          .value_head_dim = dv,
          .dtype = dtype,
          .compute_dtype = compute,
          .wave_span = chunk,
          .live = kCentroids,
          .n_slots = cap,
          .from_span = true,
          .probe = true};
}
Config Sliding(std::string name, int n_heads, int n_kv_heads, int d, int dv, DType dtype,
               DType compute, int window) {
  return {.name = std::move(name),
          .n_heads = n_heads,
          .n_kv_heads = n_kv_heads,
          .head_dim = d,
          .value_head_dim = dv,
          .dtype = dtype,
          .compute_dtype = compute,
          .wave_span = kBlockSlots,
          .window = window};
}
Config Full(std::string name, int n_heads, int n_kv_heads, int d, int dv, DType dtype,
            DType compute) {
  return {.name = std::move(name),
          .n_heads = n_heads,
          .n_kv_heads = n_kv_heads,
          .head_dim = d,
          .value_head_dim = dv,
          .dtype = dtype,
          .compute_dtype = compute,
          .wave_span = 0};
}

INSTANTIATE_TEST_SUITE_P(Float32, AttendTest,
                         ::testing::Values(Ovq("ovq", 2, 2, 20, 24, kF32, kF32, 48, 300),
                                           Ovq("ovq_group5", 5, 1, 32, 17, kBF16, kF32, 40, 90),
                                           Ovq("ovq_wide", 1, 1, 300, 272, kF32, kF32, 64, 70),
                                           Sliding("sliding", 2, 1, 20, 32, kF32, kF32, 100),
                                           Sliding("sliding_bf16", 1, 1, 33, 16, kBF16, kBF16, 1),
                                           Full("full", 2, 1, 32, 20, kF32, kBF16)),
                         [](const auto& info) { return info.param.name; });

INSTANTIATE_TEST_SUITE_P(TensorCores, AttendTest,
                         ::testing::Values(Ovq("ovq", 2, 2, 64, 48, kBF16, kBF16, 48, 330),
                                           Ovq("ovq_group5", 5, 1, 32, 64, kBF16, kBF16, 128, 90),
                                           Ovq("ovq_group17", 17, 1, 16, 20, kBF16, kBF16, 64, 100),
                                           Ovq("ovq_wide", 1, 1, 128, 128, kBF16, kBF16, 64, 280),
                                           Ovq("ovq_widest", 1, 1, 256, 240, kBF16, kBF16, 32, 70),
                                           Sliding("sliding", 2, 1, 64, 32, kBF16, kBF16, 100),
                                           Full("full", 2, 1, 32, 96, kBF16, kBF16)),
                         [](const auto& info) { return info.param.name; });

// Equal keys in several slots of the dictionary: the lowest wins, wherever they are.
class AttendTies : public ::testing::TestWithParam<DType> {};

TEST_P(AttendTies, GoToTheLowestSlot) {
  const int d = 32;
  const Config config = {.name = "ties",
                         .n_heads = 1,
                         .n_kv_heads = 1,
                         .head_dim = d,
                         .value_head_dim = 16,
                         .dtype = GetParam(),
                         .compute_dtype = GetParam(),
                         .wave_span = 64,
                         .live = kFixed,
                         .n_slots = 560,
                         .from_span = true,
                         .probe = true};
  // Within a pair of columns, a thread's columns, a warp's slots, a block, a segment, and beyond.
  const std::vector<std::vector<int>> ties = {{4, 5},       {8, 16},    {0, 63},    {17, 81},
                                              {30, 255},    {100, 256}, {300, 559}, {511, 512},
                                              {7, 71, 500}, {201, 203}};
  const std::unique_ptr<DeviceContext> context = test::MakeContext(Device::kCuda);
  for (const Split split : {Split::kAlways, Split::kNever}) {
    for (const int step_tokens : {1, 64}) {
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
      sessions.Run(step_tokens, split);
      std::vector<std::byte> state = sessions.Fetch(sessions.list()[0]);
      for (size_t i = 0; i < ties.size(); ++i) {
        EXPECT_EQ(*sessions.At<int32_t>(state.data(), sessions.blocks().best_slot, 0,
                                        static_cast<int64_t>(i)),
                  ties[i][0]);
        // |key|^2; a key of unit norm is off by 2^-9 of its length at most after rounding.
        EXPECT_NEAR(*sessions.At<float>(state.data(), sessions.blocks().best_score, 0,
                                        static_cast<int64_t>(i)),
                    1.0f, 3 * test::kRoundBF16);
      }
    }
  }
}
INSTANTIATE_TEST_SUITE_P(DTypes, AttendTies, ::testing::Values(kF32, kBF16),
                         [](const auto& info) { return DTypeName(info.param); });

TEST(Waves, CountsTheSpansThatRowsTouch) {
  const std::vector<int32_t> row_begin = {0, 1, 66, 67};
  const std::vector<int64_t> start_pos = {0, 63, 1000};
  const StepSeqs seqs = {.row_begin = row_begin,
                         .start_pos = start_pos,
                         .max_centroids = {},
                         .state = {},
                         .device = {}};
  EXPECT_EQ(cuda::Waves(seqs, 64), 2);
  EXPECT_EQ(cuda::Waves(seqs, 32), 4);
  EXPECT_EQ(cuda::Waves(seqs, 0), 1);
}

}  // namespace
}  // namespace ovq
