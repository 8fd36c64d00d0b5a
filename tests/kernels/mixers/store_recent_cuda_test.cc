// Storing of new keys and values on CUDA: byte for byte what the CPU stores, for any run of tokens,
// and together with the preparation of the heads as after it.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/mixers/common/block_attention.h"
#include "kernels/mixers/common/cuda/attend.h"
#include "kernels/mixers/common/slots.h"
#include "tests/test_util.h"

namespace ovq::kernels {
namespace {

using test::DeviceArray;
using test::RandomNormal;

constexpr int32_t kSpan = 128;

struct StoreCase {
  int n_heads, n_kv_heads, head_dim, value_head_dim;
  int extra_stride;  // floats of a row behind its values
};

class StoreRecentCuda : public ::testing::TestWithParam<std::tuple<StoreCase, DType>> {
 protected:
  void SetUp() override {
    const std::string missing = test::WhyNoDevice(Device::kCuda);
    if (!missing.empty()) GTEST_SKIP() << missing;
    context_ = test::MakeContext(Device::kCuda);
    const StoreCase& c = std::get<0>(GetParam());
    blocks_.shape = {c.n_heads, c.n_kv_heads, c.head_dim, c.value_head_dim};
    blocks_.dtype = std::get<1>(GetParam());
    blocks_.wave_span = kSpan;
    blocks_.recent_spans = 1;
    const size_t keys = BlockBytes(blocks_.dtype, c.head_dim),
                 values = BlockBytes(blocks_.dtype, ValueStride(c.value_head_dim)),
                 of_head = NumBlocks(kSpan) * (keys + values);
    blocks_.recent_keys = {{0, of_head, keys}};
    blocks_.recent_values = {{NumBlocks(kSpan) * keys, of_head, values}};
    state_bytes_ = of_head * c.n_kv_heads;
    stride_ = blocks_.shape.q_width() + blocks_.shape.k_width() + blocks_.shape.v_width() +
              c.extra_stride;
    const std::vector<float> scales = RandomNormal(c.n_kv_heads, 5);
    key_scale_ = context_->Upload(scales.data(), scales.size() * sizeof(float));
    for (const float scale : scales) host_scale_.push_back(scale);
  }

  // The batch's sequences, sequence s with lengths[s] tokens from starts[s] on; `missing` is
  // padding.
  void Stage(std::vector<int64_t> starts, const std::vector<int32_t>& lengths, size_t missing) {
    starts_ = std::move(starts);
    begin_ = {0};
    for (const int32_t n : lengths) begin_.push_back(begin_.back() + n);
    caps_.assign(starts_.size(), 0);
    for (size_t s = 0; s < starts_.size(); ++s) {
      memory_.emplace_back(*context_, state_bytes_);
      states_.push_back(s == missing ? nullptr : memory_.back().data());
    }
    const BatchSequences seqs = {
        .token_begin = begin_, .start_pos = starts_, .slot_cap = caps_, .state = states_};
    staged_ = StageBatch(*context_, seqs, {});
  }
  AttentionTensors Tensors(float* rows) const {
    const float* k = rows + blocks_.shape.q_width();
    return {.q = rows,
            .k = k,
            .v = k + blocks_.shape.k_width(),
            .stride = stride_,
            .out = nullptr,
            .out_dtype = DType::kF32};
  }
  void ClearStates() {
    const std::vector<std::byte> empty(state_bytes_, std::byte{0xff});
    for (const DeviceArray<std::byte>& memory : memory_) {
      context_->CopyFromHost(memory.data(), empty.data(), empty.size());
    }
  }
  std::vector<std::vector<std::byte>> ReadStates() const {
    std::vector<std::vector<std::byte>> states;
    for (const DeviceArray<std::byte>& memory : memory_) states.push_back(memory.Read());
    return states;
  }
  // The bytes of a sequence after the CPU has stored its tokens of a wave in a cleared state.
  std::vector<std::byte> Expected(size_t sequence, int wave, const std::vector<float>& rows) const {
    const AttentionShape& shape = blocks_.shape;
    std::vector<std::byte> state(state_bytes_, std::byte{0xff});
    if (states_[sequence] == nullptr) return state;
    const WaveTokens tokens = TokensInWave(starts_[sequence], begin_[sequence],
                                           begin_[sequence + 1] - begin_[sequence], kSpan, wave);
    for (int64_t t = tokens.begin; t < tokens.end; ++t) {
      const int64_t i = t % kSpan, row = tokens.row + (t - tokens.begin);
      const float* k = rows.data() + row * stride_ + shape.q_width();
      const float* v = k + shape.k_width();
      for (int h = 0; h < shape.n_kv_heads; ++h) {
        StoreKey(k + h * shape.head_dim, shape.head_dim, blocks_.dtype,
                 blocks_.recent_keys.At(state.data(), 0, h, i / kBlockSlots), i % kBlockSlots,
                 blocks_.recent_key_scale == nullptr ? 1 : host_scale_[h]);
        StoreValue(v + h * shape.value_head_dim, shape.value_head_dim,
                   ValueStride(shape.value_head_dim), blocks_.dtype,
                   blocks_.recent_values.At(state.data(), 0, h, i / kBlockSlots), i % kBlockSlots);
      }
    }
    return state;
  }

  std::unique_ptr<DeviceContext> context_;
  AttentionBlocks blocks_;
  size_t state_bytes_ = 0;
  int64_t stride_ = 0;
  Buffer key_scale_;
  std::vector<float> host_scale_;
  std::vector<int64_t> starts_;
  std::vector<int32_t> begin_, caps_;
  std::vector<DeviceArray<std::byte>> memory_;
  std::vector<std::byte*> states_;
  StagedBatch staged_;
};

// Runs of tokens that begin and end anywhere, one of a single token, one that ends the span,
// padding.
TEST_P(StoreRecentCuda, StoresAnyRunOfTokens) {
  blocks_.recent_key_scale = key_scale_.as<float>();
  Stage({kSpan + 3, 5 * kSpan, 61, 7 * kSpan + 40, 100}, {66, kSpan, 1, 170, 28}, 2);
  std::vector<float> rows = RandomNormal(static_cast<size_t>(begin_.back() * stride_), 3);
  std::fill_n(rows.begin() + 66 * stride_ + blocks_.shape.q_width(), 4, 0.0f);
  const DeviceArray<float> device(*context_, rows);
  for (const int wave : {0, 1}) {
    ClearStates();
    cuda::StoreRecent(*context_, {blocks_, staged_.seqs, Tensors(device.data())}, wave);
    const auto states = ReadStates();
    for (size_t s = 0; s < states.size(); ++s) {
      SCOPED_TRACE(absl::StrCat("wave ", wave, ", sequence ", s));
      EXPECT_TRUE(states[s] == Expected(s, wave, rows));
    }
  }
}

// One token a sequence: the heads prepared and stored at once are those that are prepared, then
// stored.
TEST_P(StoreRecentCuda, StoresHeadsAsTheyArePrepared) {
  const AttentionShape& shape = blocks_.shape;
  Stage({0, kSpan + 17, 9, (int64_t{1} << 40) + 127}, {1, 1, 1, 1}, 2);
  const std::vector<float> rows = RandomNormal(static_cast<size_t>(4 * stride_), 3);
  const std::vector<float> weights = RandomNormal(static_cast<size_t>(2 * shape.head_dim), 4);
  const DeviceArray<float> weight(*context_, weights);
  for (const auto layout : {RopeSpec::Layout::kHalves, RopeSpec::Layout::kInterleaved}) {
    for (const HeadNorm norm : {HeadNorm::kUnit, HeadNorm::kLayer}) {
      const RopeTable table(*context_, {.layout = layout, .dims = shape.head_dim / 4 * 2});
      const DeviceArray<float> apart(*context_, rows), fused(*context_, rows);
      const auto prep = [&](float* q) {
        return HeadPrep{.queries = {q, 4, shape.n_heads, shape.head_dim, stride_},
                        .keys = {q + shape.q_width(), 4, shape.n_kv_heads, shape.head_dim, stride_},
                        .norm = norm,
                        .query_norm = weight.data(),
                        .key_norm = weight.data(),
                        .rope = &table,
                        .positions = {staged_.seqs.device.positions, 4},
                        .round_to_bf16 = norm == HeadNorm::kUnit};
      };
      PrepareHeads(*context_, prep(apart.data()));
      cuda::StoreRecent(*context_, {blocks_, staged_.seqs, Tensors(apart.data())}, 0);
      const std::vector<float> prepared = apart.Read();
      ClearStates();
      float* const q = fused.data();
      PrepareAndStoreCuda(*context_, prep(q),
                          {q + shape.q_width() + shape.k_width(), 4, shape.n_kv_heads,
                           shape.value_head_dim, stride_},
                          blocks_, staged_.seqs.device);
      EXPECT_EQ(fused.Read(), prepared);
      const auto states = ReadStates();
      for (size_t s = 0; s < states.size(); ++s) {
        EXPECT_TRUE(states[s] == Expected(s, 0, prepared)) << s;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    , StoreRecentCuda,
    testing::Combine(testing::Values(StoreCase{2, 2, 128, 128, 0}, StoreCase{4, 2, 20, 12, 4},
                                     StoreCase{3, 1, 33, 17, 1}, StoreCase{6, 3, 160, 272, 0}),
                     testing::Values(DType::kF32, DType::kBF16, DType::kI8)),
    [](const auto& info) {
      const StoreCase& c = std::get<0>(info.param);
      return absl::StrCat(c.n_heads, "x", c.n_kv_heads, "x", c.head_dim, "x", c.value_head_dim,
                          DTypeName(std::get<1>(info.param)));
    });

}  // namespace
}  // namespace ovq::kernels
