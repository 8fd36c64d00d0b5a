// The update of a full chunk on CUDA against the CPU's, byte for byte.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/mixers/common/block_attention.h"
#include "kernels/mixers/common/chunk_update.h"
#include "kernels/mixers/ovq/ovq.h"
#include "tests/kernels/mixers/mixer_test_util.h"

namespace ovq::kernels::test {
namespace {

struct Case {
  int head_dim, value_head_dim, heads, chunk_len, slot_cap;
  DType dtype;
  bool normalizes = false;
};

std::string CaseName(const ::testing::TestParamInfo<Case>& info) {
  const Case& c = info.param;
  return absl::StrCat("d", c.head_dim, "v", c.value_head_dim, "h", c.heads, "_", c.chunk_len, "_",
                      c.slot_cap, "_", DTypeName(c.dtype), c.normalizes ? "_normalized" : "");
}

// One head of one session's state.
struct OvqHead {
  const AttentionBlocks& blocks;
  std::byte* session;
  int kv_head;

  std::byte* keys(int64_t b) const { return blocks.dictionary_keys.At(session, 0, kv_head, b); }
  std::byte* values(int64_t b) const { return blocks.dictionary_values.At(session, 0, kv_head, b); }
  uint32_t* counts(int64_t b) const { return blocks.counts.At<uint32_t>(session, kv_head, b); }
  float* log_counts(int64_t b) const { return blocks.log_counts.At<float>(session, kv_head, b); }
  std::byte* pending_keys(int64_t b) const { return blocks.recent_keys.At(session, 0, kv_head, b); }
  std::byte* pending_values(int64_t b) const {
    return blocks.recent_values.At(session, 0, kv_head, b);
  }
  float& best_score(int64_t i) const { return *blocks.best_score.At<float>(session, kv_head, i); }
  int32_t& best_slot(int64_t i) const { return *blocks.best_slot.At<int32_t>(session, kv_head, i); }
};

// One row of a sequence at `position`, and the state it finds.
struct Sequence {
  int64_t position;
  std::vector<std::byte> state;
};

class OvqUpdate : public ::testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    const std::string missing = WhyNoDevice(Device::kCuda);
    if (!missing.empty()) GTEST_SKIP() << missing;
  }

  static LayerConfig<OvqConfig> Config() {
    LayerConfig<OvqConfig> layer;
    OvqConfig& config = layer.fields;
    config.shape = {.n_heads = GetParam().heads,
                    .n_kv_heads = GetParam().heads,
                    .head_dim = GetParam().head_dim,
                    .value_head_dim = GetParam().value_head_dim};
    config.chunk_len = GetParam().chunk_len;
    config.default_slot_cap = GetParam().slot_cap;
    config.normalize_centroids = GetParam().normalizes;
    return layer;
  }

  OvqUpdate()
      : config_(Config()),
        ovq_({.config = config_,
              .d_model = 0,
              .kv_dtype = GetParam().dtype,
              .device = Device::kCuda},
             config_.fields) {
    const MixerState& layout = ovq_.state();
    // Odd places, as other layers' states may lie before and between.
    where_.fixed_offset = 64;
    where_.blocks_offset = where_.fixed_offset + layout.fixed.bytes() + 128;
    where_.block_stride = layout.block.bytes() + 192;
    where_.head_stride = layout.head_bytes();
    where_.growth = 0;
    growths_ = {layout.growth};
    n_blocks_ = NumBlocks(GetParam().slot_cap);
    state_bytes_ = where_.blocks_offset + static_cast<size_t>(n_blocks_) * where_.block_stride;
    blocks_ = ovq_.Blocks(where_);
    blocks_.layer = 5;
  }

  int64_t chunk_len() const { return GetParam().chunk_len; }
  int64_t CentroidsBefore(int64_t position) const {
    return CentroidsAt(position / chunk_len() * chunk_len(), GetParam().slot_cap);
  }

  void FillPending(const OvqHead& head, int64_t n_old);
  void FillDictionary(const OvqHead& head, int64_t n_old);
  Sequence RandomSequence(int64_t position);
  void RunCpu(std::vector<Sequence>& sequences);
  void RunCuda(std::vector<Sequence>& sequences, int wave);
  BatchSequences Seqs(const std::vector<Sequence>& sequences, std::vector<std::byte*> states);

  OvqHead Head(std::byte* session, int kv_head) const { return {blocks_, session, kv_head}; }
  // The blocks, with a batch's part filled in.
  AttentionBlocks Blocks(const StagedBatch& staged) const {
    AttentionBlocks blocks = blocks_;
    blocks.live = staged.live[0];
    return blocks;
  }

  LayerConfig<OvqConfig> config_;
  OvqAttention ovq_;
  LayerState where_;
  AttentionBlocks blocks_;
  std::vector<Growth> growths_;
  int64_t n_blocks_ = 0;
  size_t state_bytes_ = 0;
  std::mt19937 random_{17};
  std::normal_distribution<float> normal_;
  std::vector<int32_t> token_begin_, caps_;
  std::vector<int64_t> start_;
  std::vector<std::byte*> states_;
};

// Keys and values at random; scores with many ties and a few that are no numbers. In the first
// chunk, where the scores are products with key 0, all keys are nearly key 0: their order hangs on
// the last bits, and key 0 would often be among the lowest.
void OvqUpdate::FillPending(const OvqHead& head, int64_t n_old) {
  const int d = GetParam().head_dim, dv = GetParam().value_head_dim;
  std::vector<float> key(static_cast<size_t>(d)), value(static_cast<size_t>(dv));
  std::vector<float> key_0;
  for (int64_t i = 0; i < chunk_len(); ++i) {
    if (n_old > 0 || i == 0) {
      for (float& x : key) x = normal_(random_);
      key_0 = key;
    } else {
      for (size_t c = 0; c < key.size(); ++c) {
        key[c] = random_() % 4 == 0 ? std::nextafter(key_0[c], 2 * key_0[c]) : key_0[c];
      }
    }
    for (float& x : value) x = normal_(random_);
    const int slot = static_cast<int>(i % kBlockSlots);
    StoreKey(key.data(), d, blocks_.dtype, head.pending_keys(i / kBlockSlots), slot);
    StoreValue(value.data(), dv, ValueStride(dv), blocks_.dtype,
               head.pending_values(i / kBlockSlots), slot);
    const uint32_t draw = random_() % 16;
    head.best_score(i) = draw == 0   ? std::numeric_limits<float>::quiet_NaN()
                         : draw == 1 ? std::numeric_limits<float>::infinity()
                                     : static_cast<float>(draw) / 8;
    head.best_slot(i) = n_old == 0 ? 0 : static_cast<int32_t>(random_() % n_old);
  }
}

void OvqUpdate::FillDictionary(const OvqHead& head, int64_t n_old) {
  const int d = GetParam().head_dim, dv = GetParam().value_head_dim;
  std::vector<float> key(static_cast<size_t>(d)), value(static_cast<size_t>(dv));
  for (int64_t j = 0; j < n_old; ++j) {
    for (float& x : key) x = normal_(random_);
    for (float& x : value) x = normal_(random_);
    const int64_t block = j / kBlockSlots;
    const int slot = static_cast<int>(j % kBlockSlots);
    StoreKey(key.data(), d, blocks_.dtype, head.keys(block), slot);
    StoreValue(value.data(), dv, ValueStride(dv), blocks_.dtype, head.values(block), slot);
    // Every third one is about to be full.
    head.counts(block)[slot] =
        j % 3 == 0 ? std::numeric_limits<uint32_t>::max() - random_() % 3 : 1 + random_() % 1000;
    head.log_counts(block)[slot] = std::log(static_cast<float>(head.counts(block)[slot]));
  }
}

Sequence OvqUpdate::RandomSequence(int64_t position) {
  Sequence sequence = {position, std::vector<std::byte>(state_bytes_, std::byte{0})};
  const int64_t n_old = CentroidsBefore(position);
  for (int h = 0; h < GetParam().heads; ++h) {
    const OvqHead head = Head(sequence.state.data(), h);
    FillPending(head, n_old);
    FillDictionary(head, n_old);
  }
  return sequence;
}

// Sequences of one token each.
BatchSequences OvqUpdate::Seqs(const std::vector<Sequence>& sequences,
                               std::vector<std::byte*> states) {
  token_begin_ = {0};
  caps_.clear();
  start_.clear();
  states_ = std::move(states);
  for (const Sequence& sequence : sequences) {
    token_begin_.push_back(token_begin_.back() + 1);
    caps_.push_back(GetParam().slot_cap);
    start_.push_back(sequence.position);
  }
  BatchSequences seqs;
  seqs.token_begin = token_begin_;
  seqs.start_pos = start_;
  seqs.slot_cap = caps_;
  seqs.state = states_;
  return seqs;
}

// The row of each sequence is the pending key and value of its position, so that storing it changes
// nothing; attending it finds that key's best centroid.
void OvqUpdate::RunCpu(std::vector<Sequence>& sequences) {
  const auto context = MakeContext(Device::kCpu);
  const Case& c = GetParam();
  const int64_t stride = int64_t{c.heads} * (2 * c.head_dim + c.value_head_dim);
  std::vector<float> qkv(sequences.size() * static_cast<size_t>(stride));
  std::vector<float> out(sequences.size() * static_cast<size_t>(c.heads * c.value_head_dim));
  float* const k = qkv.data() + c.heads * c.head_dim;
  float* const v = k + c.heads * c.head_dim;
  std::vector<std::byte*> states;
  for (size_t s = 0; s < sequences.size(); ++s) {
    states.push_back(sequences[s].state.data());
    const int64_t i = sequences[s].position % chunk_len(), row = static_cast<int64_t>(s) * stride;
    for (int h = 0; h < c.heads; ++h) {
      const OvqHead head = Head(states.back(), h);
      const int slot = static_cast<int>(i % kBlockSlots);
      LoadKey(head.pending_keys(i / kBlockSlots), c.dtype, c.head_dim, slot,
              k + row + h * c.head_dim);
      LoadValue(head.pending_values(i / kBlockSlots), c.dtype, c.value_head_dim,
                ValueStride(c.value_head_dim), slot, v + row + h * c.value_head_dim);
    }
  }
  const AttentionTensors tokens = {.q = qkv.data(),
                                   .k = k,
                                   .v = v,
                                   .stride = stride,
                                   .out = out.data(),
                                   .out_dtype = DType::kF32};
  const StagedBatch staged = StageBatch(*context, Seqs(sequences, states), growths_);
  AttendCpu(*context, {Blocks(staged), staged.seqs, tokens});
}

// Runs only the update; one more sequence is padding.
void OvqUpdate::RunCuda(std::vector<Sequence>& sequences, int wave) {
  const auto context = MakeContext(Device::kCuda);
  std::vector<Buffer> memory;
  std::vector<std::byte*> states;
  std::vector<Sequence> padded = sequences;
  padded.push_back({chunk_len() - 1, {}});
  for (const Sequence& sequence : sequences) {
    memory.push_back(context->Upload(sequence.state.data(), sequence.state.size()));
    states.push_back(memory.back().as<std::byte>());
  }
  states.push_back(nullptr);
  const StagedBatch staged = StageBatch(*context, Seqs(padded, states), growths_);
  const AttentionTensors no_tokens = {};
  UpdateChunksCuda(*context, {Blocks(staged), staged.seqs, no_tokens}, wave);
  for (size_t s = 0; s < sequences.size(); ++s) {
    context->CopyToHost(sequences[s].state.data(), memory[s].as<std::byte>(), state_bytes_);
  }
}

TEST_P(OvqUpdate, IsThatOfTheCpu) {
  const int64_t last = chunk_len() - 1, far = (int64_t{1} << 40) / chunk_len() * chunk_len();
  std::vector<Sequence> expected;
  // The first chunk, two that grow, one whose dictionary is all but full, one that is not done.
  for (int64_t position : {last, chunk_len() + last, 2 * chunk_len() + last, far + last, far - 2}) {
    expected.push_back(RandomSequence(position));
  }
  const std::vector<Sequence> before = expected;
  RunCpu(expected);
  std::vector<Sequence> actual = before;
  for (size_t s = 0; s < actual.size(); ++s) {
    const int64_t i = actual[s].position % chunk_len();
    for (int h = 0; h < GetParam().heads; ++h) {
      const OvqHead from = Head(expected[s].state.data(), h);
      const OvqHead to = Head(actual[s].state.data(), h);
      to.best_score(i) = from.best_score(i);
      to.best_slot(i) = from.best_slot(i);
    }
  }
  const std::vector<Sequence> unchanged = actual;
  std::vector<Sequence> idle = actual;
  RunCuda(idle, /*wave=*/1);
  RunCuda(actual, /*wave=*/0);
  // Thread blocks share the heads of one sequence, but not those of as many sequences as here.
  for (size_t s = 0; s < actual.size(); ++s) {
    std::vector<Sequence> alone = {unchanged[s]};
    RunCuda(alone, /*wave=*/0);
    EXPECT_EQ(alone[0].state, actual[s].state) << "position " << actual[s].position;
  }
  for (size_t s = 0; s < actual.size(); ++s) {
    SCOPED_TRACE(absl::StrCat("position ", actual[s].position));
    EXPECT_EQ(idle[s].state, unchanged[s].state);
    EXPECT_EQ(actual[s].state == unchanged[s].state, s + 1 == actual.size());
    for (int h = 0; h < GetParam().heads; ++h) {
      const OvqHead cpu = Head(expected[s].state.data(), h);
      const OvqHead cuda = Head(actual[s].state.data(), h);
      for (int64_t b = 0; b < n_blocks_; ++b) {
        for (int i = 0; i < kBlockSlots; ++i) {
          // Two logarithms, each within a unit in the last place of the true one.
          const float want = cpu.log_counts(b)[i];
          EXPECT_NEAR(cuda.log_counts(b)[i], want, 4 * kRoundF32 * want) << b << " " << i;
          cuda.log_counts(b)[i] = want;
        }
      }
    }
    EXPECT_EQ(actual[s].state, expected[s].state);
  }
}

INSTANTIATE_TEST_SUITE_P(All, OvqUpdate,
                         ::testing::Values(Case{32, 48, 2, 128, 300, DType::kF32},
                                           Case{32, 48, 2, 128, 300, DType::kBF16},
                                           Case{20, 12, 1, 100, 64, DType::kBF16},
                                           Case{64, 8, 3, 16, 24, DType::kF32},
                                           Case{20, 48, 2, 100, 64, DType::kF32, true},
                                           Case{32, 12, 1, 128, 300, DType::kBF16, true},
                                           Case{32, 48, 2, 128, 300, DType::kI8},
                                           Case{20, 12, 1, 100, 64, DType::kI8},
                                           Case{300, 8, 1, 16, 24, DType::kI8},
                                           Case{20, 48, 2, 100, 64, DType::kI8, true},
                                           // More shared memory than a kernel has without asking.
                                           Case{8, 8, 1, 4200, 50, DType::kBF16}),
                         CaseName);

TEST(OvqOnCuda, RefusesChunksBeyondSharedMemory) {
  const std::string missing = WhyNoDevice(Device::kCuda);
  if (!missing.empty()) GTEST_SKIP() << missing;
  const auto context = MakeContext(Device::kCuda);
  const auto config =
      ReadFields("ovq_attention", MakeFields({{"num_attention_heads", 2}, {"head_dim", 32}}),
                 MakeFields({{"chunk_size", kMaxCudaChunkLen + 1}}, "ovq."));
  const WeightSource nothing;
  WeightReader no_weights(nothing, DType::kF32, *context);
  const auto made = FindMixer("ovq_attention")
                        ->make({.layer = 0,
                                .state = {.config = *config,
                                          .d_model = 64,
                                          .kv_dtype = DType::kF32,
                                          .device = context->device()},
                                .weights = no_weights,
                                .compute_dtype = DType::kF32,
                                .context = *context});
  ASSERT_EQ(made.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(made.status().message().find("ovq.chunk_size"), std::string_view::npos);
}

}  // namespace
}  // namespace ovq::kernels::test
