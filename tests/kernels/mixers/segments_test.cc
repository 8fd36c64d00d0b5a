// Blocks summed in segments (block_attention.h), and threads that share the segments of a head.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "kernels/mixers/common/attend.h"
#include "kernels/mixers/common/block_attention.h"
#include "tests/kernels/mixers/mixer_test_util.h"
#include "tests/test_util.h"

namespace ovq::kernels::test {
namespace {

constexpr int kSegmentDim = 24, kSegmentValueDim = 20,
              kSegmentStride = ValueStride(kSegmentValueDim);

// Float32 blocks: a dictionary of `n_live` slots with a bias, then recent ones up to position 0's.
struct SegmentedMemory {
  SegmentedMemory(int n_live, int n_recent)
      : n_dictionary(static_cast<int>(NumBlocks(n_live))),
        keys(RandomNormal(Elements(n_dictionary + n_recent, kSegmentDim), 1)),
        values(RandomNormal(Elements(n_dictionary + n_recent, kSegmentStride), 2)),
        bias(RandomNormal(Elements(n_dictionary, 1), 3)) {
    for (int b = 0; b < n_dictionary + n_recent; ++b) {
      const bool recent = b >= n_dictionary;
      blocks.push_back({.keys = keys.data() + Elements(b, kSegmentDim),
                        .values = values.data() + Elements(b, kSegmentStride),
                        .bias = recent ? nullptr : bias.data() + Elements(b, 1),
                        .live = recent ? -1 : std::min(kBlockSlots, n_live - b * kBlockSlots),
                        .begin = (b - n_dictionary - n_recent + 1) * kBlockSlots});
    }
  }
  static size_t Elements(int n_blocks, int channels) {
    return static_cast<size_t>(n_blocks) * kBlockSlots * static_cast<size_t>(channels);
  }
  int n_dictionary;
  std::vector<float> keys, values, bias;
  std::vector<KvBlock> blocks;
};

struct TileResult {
  std::vector<float> out, best_score;
  std::vector<int32_t> best_slot;
};

// Attention by definition in float64: slots `from` on, for a query at `position`.
std::vector<double> PlainAttention(const SegmentedMemory& memory, const float* query, int position,
                                   int window) {
  std::vector<double> out(kSegmentValueDim, 0.0);
  double sum = 0;
  for (const KvBlock& block : memory.blocks) {
    for (int s = 0; s < kBlockSlots; ++s) {
      const int at = block.begin + s;
      const bool open = block.live >= 0 ? s < block.live
                                        : at <= position && (window == 0 || at > position - window);
      if (!open) continue;
      double score = block.bias == nullptr ? 0.0 : block.bias[s];
      for (int i = 0; i < kSegmentDim; ++i) {
        score += double{query[i]} * static_cast<const float*>(block.keys)[i * kBlockSlots + s];
      }
      const double weight = std::exp(score);
      sum += weight;
      for (int c = 0; c < kSegmentValueDim; ++c) {
        out[static_cast<size_t>(c)] +=
            weight * static_cast<const float*>(block.values)[s * kSegmentStride + c];
      }
    }
  }
  for (double& x : out) x /= sum;
  return out;
}

class SegmentedTile {
 public:
  SegmentedTile(const SegmentedMemory& memory, int n_rows, int window)
      : memory_(memory), rows_(RandomNormal(static_cast<size_t>(n_rows * kSegmentDim), 4)) {
    const auto n = static_cast<size_t>(n_rows);
    result_ = {std::vector<float>(n * kSegmentStride), std::vector<float>(n),
               std::vector<int32_t>(n)};
    scratch_.resize(BlockAttentionScratch(2 * n_rows, kSegmentDim, kSegmentStride));
    for (int i = 0; i < 2 * n_rows; ++i) places_.push_back(rows_.data() + i % n_rows * kSegmentDim);
    for (int i = 0; i < n_rows; ++i) position_.push_back(i);
    attention_ = {.dtype = DType::kF32,
                  .head_dim = kSegmentDim,
                  .value_stride = kSegmentStride,
                  .window = window,
                  .blocks = memory.blocks,
                  .rows = places_.data(),
                  .n_queries = n_rows,
                  .query_position = position_.data(),
                  .out = result_.out.data(),
                  .n_probes = n_rows,
                  .best_score = result_.best_score.data(),
                  .best_slot = result_.best_slot.data(),
                  .scratch = scratch_.data()};
  }
  const BlockAttention& attention() const { return attention_; }
  const float* row(int i) const { return places_[static_cast<size_t>(i)]; }
  const TileResult& result() const { return result_; }

 private:
  const SegmentedMemory& memory_;
  std::vector<float> rows_;
  TileResult result_;
  std::vector<float> scratch_;
  std::vector<const float*> places_;
  std::vector<int32_t> position_;
  BlockAttention attention_;
};

// Sizes on both sides of a segment's end, with a window that closes whole segments, too.
TEST(Segments, AreAttentionByDefinition) {
  for (const int n_live : {0, 500, 512, 513, 2000}) {
    for (const int n_recent : {1, 3, 20}) {
      const SegmentedMemory memory(n_live, n_recent);
      for (const int window : {0, 70}) {
        for (const int n_rows : {1, 7, 30}) {
          SegmentedTile tile(memory, n_rows, window);
          AttendBlocksCpu(tile.attention());
          for (int r = 0; r < n_rows; ++r) {
            const std::vector<double> expected = PlainAttention(memory, tile.row(r), r, window);
            // Sums of at most 3,280 terms in float32 of values of order 1, and e^x of float32 x of
            // up to 20, off by 20 epsilon: 3e-6 each way.
            for (size_t c = 0; c < kSegmentValueDim; ++c) {
              ASSERT_NEAR(tile.result().out[static_cast<size_t>(r) * kSegmentStride + c],
                          expected[c], 1e-5)
                  << n_live << " live, " << n_recent << " recent, row " << r << " of " << n_rows;
            }
            float best = n_live == 0 ? -HUGE_VALF : -1e30f;
            int32_t slot = 0;
            for (int b = 0; b < memory.n_dictionary; ++b) {
              std::vector<float> scores(kBlockSlots);
              ScoreBlockCpu(tile.row(r), memory.blocks[static_cast<size_t>(b)].keys, DType::kF32,
                            kSegmentDim, scores.data());
              for (int s = 0; s < memory.blocks[static_cast<size_t>(b)].live; ++s) {
                if (scores[static_cast<size_t>(s)] <= best) continue;
                best = scores[static_cast<size_t>(s)];
                slot = b * kBlockSlots + s;
              }
            }
            ASSERT_EQ(tile.result().best_score[static_cast<size_t>(r)], best);
            ASSERT_EQ(tile.result().best_slot[static_cast<size_t>(r)], slot);
          }
        }
      }
    }
  }
}

// The first of equal keys in several segments is the nearest.
TEST(Segments, TiesGoToTheLowestSlot) {
  SegmentedMemory memory(3 * kCpuSegmentBlocks * kBlockSlots, 1);
  for (size_t i = 0; i < memory.keys.size(); ++i) memory.keys[i] = 0.5f;
  SegmentedTile tile(memory, 2, 0);
  AttendBlocksCpu(tile.attention());
  EXPECT_EQ(tile.result().best_slot, std::vector<int32_t>({0, 0}));
}

// Segments computed in any order and folded in their own.
TEST(Segments, InPartsHaveTheSameBits) {
  const SegmentedMemory memory(1900, 4);
  for (const int n_rows : {1, 20}) {
    SegmentedTile whole(memory, n_rows, 0), parts(memory, n_rows, 0);
    AttendBlocksCpu(whole.attention());
    const BlockAttention& tile = parts.attention();
    const int n = tile.n_segments();
    ASSERT_EQ(n, 5);
    std::vector<std::vector<float>> memories;
    std::vector<SegmentSums> sums;
    for (int s = 0; s < n; ++s) {
      memories.emplace_back(SegmentSumsFloats(2 * n_rows, kSegmentStride));
      sums.push_back(SegmentSumsIn(memories.back().data(), n_rows, n_rows, kSegmentStride));
    }
    std::vector<float> scratch(SegmentScratch(2 * n_rows, kSegmentDim, kSegmentStride));
    for (int s = n - 1; s >= 0; --s) {
      AttendSegmentCpu(tile, s, tile.blocks.size(), scratch.data(), sums[static_cast<size_t>(s)]);
    }
    for (int s = 1; s < n; ++s) FoldSegmentCpu(tile, sums[static_cast<size_t>(s)], sums[0]);
    FinishSegments(tile, sums[0]);
    EXPECT_EQ(parts.result().out, whole.result().out);
    EXPECT_EQ(parts.result().best_score, whole.result().best_score);
    EXPECT_EQ(parts.result().best_slot, whole.result().best_slot);
  }
}

// Layers with few heads of keys that have more than a segment of blocks.
std::vector<MixerCase> LongMemories() {
  std::vector<MixerCase> cases;
  const auto add = [&](const std::string& type, const Fields& section, int64_t slot_cap,
                       int64_t heads, int64_t kv_heads, DType dtype) {
    cases.push_back({.type = type,
                     .name = type,
                     .model = {{"num_attention_heads", heads},
                               {"num_key_value_heads", kv_heads},
                               {"head_dim", int64_t{16}},
                               {"sliding_window", int64_t{1200}}},
                     .section = section,
                     .weights = {{"self_attn.beta", {6.0f, 1.0f}}},
                     .slot_cap = slot_cap,
                     .output_terms = heads * 16,
                     .kv_dtype = dtype,
                     .compute_dtype = DType::kF32});
  };
  add("full_attention", {}, 0, 2, 1, DType::kBF16);
  add("sliding_attention", {}, 0, 1, 1, DType::kI8);
  add("ovq_attention", {{"chunk_size", int64_t{50}}}, 3000, 2, 1, DType::kF32);
  add("ovq_attention", {{"chunk_size", int64_t{64}}, {"delta_rule", true}}, 3000, 1, 1,
      DType::kBF16);
  add("closest_pair_attention", {{"chunk_size", int64_t{64}}}, 1000, 4, 2, DType::kBF16);
  add("key_diff_attention", {{"chunk_size", int64_t{64}}}, 1000, 4, 2, DType::kI8);
  return cases;
}

// A prompt alone and on threads that share, there cut anywhere and at its end in small parts.
void ExpectSameBytes(const MixerCase& c, int n_threads, int n_tokens) {
  const std::vector<float> x = RandomRows(n_tokens, 12);
  std::vector<int64_t> cuts = {70, 700};
  for (int64_t at = n_tokens - 70; at < n_tokens; at += 7) cuts.push_back(at);
  MixerInstance one(c, Device::kCpu, 1, n_tokens), several(c, Device::kCpu, n_threads, n_tokens);
  MixerSession alone = one.NewSession(), shared = several.NewSession();
  const std::vector<float> expected = one.Run(alone, x, {}), y = several.Run(shared, x, cuts);
  EXPECT_EQ(y, expected) << c.name;
  EXPECT_EQ(shared.bytes(), alone.bytes()) << c.name;
}

TEST(Segments, ThreadsThatShareAHeadGiveTheSameBytes) {
  for (const MixerCase& c : LongMemories()) ExpectSameBytes(c, 3, 1300);
}

// Two threads compute eleven segments of each of three heads at a time; here are twelve.
TEST(Segments, MoreThanAreComputedAtATimeGiveTheSameBytes) {
  MixerCase c = LongMemories().front();
  c.model["num_attention_heads"] = c.model["num_key_value_heads"] = int64_t{3};
  c.model["head_dim"] = int64_t{8};
  c.output_terms = 24;
  ExpectSameBytes(c, 2, 5700);
}

// Sharing depends on the numbers of heads and blocks.
TEST(Segments, AreSharedWhereHeadsAreTooFew) {
  const auto shares = [](int n_kv_heads, const std::vector<int64_t>& positions, int n_threads) {
    AttentionBlocks blocks;
    blocks.shape = {n_kv_heads, n_kv_heads, kSegmentDim, kSegmentValueDim};
    std::vector<int32_t> token_begin = {0};
    for (size_t i = 0; i < positions.size(); ++i)
      token_begin.push_back(static_cast<int32_t>(i + 1));
    std::vector<int32_t> caps(positions.size());
    std::vector<std::byte*> states(positions.size());
    const BatchSequences seqs = {
        .token_begin = token_begin, .start_pos = positions, .slot_cap = caps, .state = states};
    const AttentionTensors tokens = {};
    return SharesHeads({blocks, seqs, tokens}, n_threads);
  };
  EXPECT_FALSE(shares(1, {16384}, 1));       // no one to share with
  EXPECT_TRUE(shares(1, {16384}, 2));        // a core would wait
  EXPECT_TRUE(shares(3, {16384}, 2));        // one would wait for half of the time
  EXPECT_TRUE(shares(6, {16384}, 64));       // 58 would wait
  EXPECT_TRUE(shares(1, {16384, 100}, 2));   // a long one beside a short one
  EXPECT_FALSE(shares(2, {16384}, 2));       // each has one
  EXPECT_FALSE(shares(4, {16384}, 2));       // each has two
  EXPECT_FALSE(shares(1, {1024}, 2));        // the waits between would take as long
  EXPECT_FALSE(shares(1, {64, 64, 64}, 2));  // likewise
}

}  // namespace
}  // namespace ovq::kernels::test
