#include "model/state_layout.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "kernels/mixers/ovq/ovq.h"

namespace ovq::model {
namespace {

constexpr int kChunkLen = 8;
constexpr StateLimits kLimits = {.max_slot_cap = 1000, .max_unbounded_tokens = 3000};
constexpr size_t kPages[] = {256, 4096, size_t{64} << 10, size_t{2} << 20};
constexpr int64_t kPositions[] = {0, 1, 7, 8, 9, 63, 64, 65, 128, 129, 1000, 2999, 3000};
constexpr int64_t kCaps[] = {2, 64, 65, 1000};

// A state of fixed_words and, with a growth, row_words a slot. A default Growth means none.
kernels::MixerState State(int64_t fixed_words, const kernels::Growth& growth, int64_t row_words) {
  kernels::MixerState state{
      .fixed = kernels::StateFields({{"fixed", kernels::DType::kU32, kernels::Shape{fixed_words}}}),
      .growth = growth,
      .block = {}};
  if (growth.exists()) {
    state.block = kernels::StateFields(
        {{"rows", kernels::DType::kU32, kernels::Shape{kernels::kBlockSlots, row_words}},
         {"counts", kernels::DType::kU32, kernels::Shape{kernels::kBlockSlots}}});
  }
  return state;
}

// Layers of all growth laws, two of each, interleaved; no size is a multiple of the alignment.
std::vector<kernels::MixerState> Layers() {
  const kernels::Growth chunks = kernels::GrowsByChunk(kChunkLen, 300),
                        tokens = kernels::GrowsByToken();
  return {State(3, chunks, 5),   State(700, {}, 0),    State(1, tokens, 3),
          State(33, chunks, 10), State(90, tokens, 7), State(17, {}, 0)};
}

int64_t Blocks(const kernels::MixerState& state, int64_t position, int64_t cap) {
  return state.growth.exists() ? kernels::NumBlocks(state.growth.live(position, cap)) : 0;
}

// Every byte range that the layers' kernels touch, in address order.
std::vector<std::pair<size_t, size_t>> Parts(const StateLayout& layout, int64_t position,
                                             int64_t cap) {
  std::vector<std::pair<size_t, size_t>> parts;
  const std::vector<kernels::MixerState> layers = Layers();
  for (size_t i = 0; i < layers.size(); ++i) {
    const kernels::LayerState& where = layout.layer(static_cast<int>(i));
    parts.emplace_back(where.fixed_offset, where.fixed_offset + layers[i].fixed.bytes());
    for (int64_t b = 0; b < Blocks(layers[i], position, cap); ++b) {
      const size_t begin = where.blocks_offset + static_cast<size_t>(b) * where.block_stride;
      parts.emplace_back(begin, begin + layers[i].block.bytes());
    }
  }
  std::sort(parts.begin(), parts.end());
  return parts;
}

size_t Sum(const std::vector<kernels::StateExtent>& extents) {
  size_t bytes = 0;
  for (const kernels::StateExtent& extent : extents) bytes += extent.bytes;
  return bytes;
}

TEST(StateLayout, PartsAreAlignedDisjointAndLive) {
  for (size_t page : kPages) {
    const StateLayout layout(Layers(), kLimits, page);
    for (int64_t position : kPositions) {
      size_t end = 0;
      const std::vector<kernels::StateExtent> live = layout.live_extents_at(position, 1000);
      for (const auto& [from, to] : Parts(layout, position, 1000)) {
        EXPECT_EQ(from % StateLayout::kPartAlignment, 0u);
        EXPECT_GE(from, end) << "overlap at " << from << ", position " << position;
        end = to;
        EXPECT_EQ(std::count_if(live.begin(), live.end(),
                                [&, from = from, to = to](const kernels::StateExtent& extent) {
                                  return from >= extent.offset &&
                                         to <= extent.offset + extent.bytes;
                                }),
                  1)
            << from << ", page " << page << ", position " << position;
      }
    }
  }
}

TEST(StateLayout, CommittedExtentsAreThePagesOfTheLiveOnes) {
  for (size_t page : kPages) {
    const StateLayout layout(Layers(), kLimits, page);
    EXPECT_EQ(layout.page_bytes(), page);
    for (int64_t position : kPositions) {
      for (int64_t cap : kCaps) {
        const std::vector<kernels::StateExtent> live = layout.live_extents_at(position, cap);
        const std::vector<kernels::StateExtent> committed = layout.extents_at(position, cap);
        ASSERT_EQ(committed.size(), live.size());
        size_t end = 0;
        for (size_t i = 0; i < live.size(); ++i) {
          EXPECT_EQ(committed[i].offset, live[i].offset);
          EXPECT_EQ(committed[i].offset % page, 0u);
          EXPECT_EQ(committed[i].bytes % page, 0u);
          EXPECT_GE(committed[i].bytes, live[i].bytes);
          EXPECT_LT(committed[i].bytes, live[i].bytes + page);
          EXPECT_GE(committed[i].offset, end);
          end = committed[i].offset + committed[i].bytes;
        }
        EXPECT_LE(end, layout.virtual_bytes());
        EXPECT_EQ(layout.bytes_at(position, cap), Sum(committed));
        EXPECT_EQ(layout.live_bytes_at(position, cap), Sum(live));
        EXPECT_LE(layout.bytes_at(position, cap), layout.bytes_cap(cap));
      }
    }
    // Dictionaries come arbitrarily near their cap, unbounded layers reach their limit.
    EXPECT_EQ(layout.bytes_cap(64), layout.bytes_at(3000, 65)) << page;
    EXPECT_EQ(layout.bytes_cap(1000), layout.virtual_bytes());
  }
}

TEST(StateLayout, LiveBytesDoNotDependOnThePageSize) {
  const StateLayout small(Layers(), kLimits, 256);
  for (size_t page : kPages) {
    const StateLayout layout(Layers(), kLimits, page);
    EXPECT_EQ(layout.fingerprint(), small.fingerprint());
    for (int64_t position : kPositions) {
      const std::vector<kernels::StateExtent> a = small.live_extents_at(position, 300);
      const std::vector<kernels::StateExtent> b = layout.live_extents_at(position, 300);
      ASSERT_EQ(a.size(), b.size());
      for (size_t i = 0; i < a.size(); ++i) EXPECT_EQ(a[i].bytes, b[i].bytes);
    }
    for (int i = 0; i < 6; ++i) {
      EXPECT_EQ(layout.layer(i).fixed_offset, small.layer(i).fixed_offset);
      EXPECT_EQ(layout.layer(i).block_stride, small.layer(i).block_stride);
    }
  }
}

TEST(StateLayout, AModelWithoutStateStillHasAnAddress) {
  const kernels::MixerState nothing{.fixed = {}, .growth = {}, .block = {}};
  const StateLayout layout({nothing}, kLimits);
  EXPECT_EQ(layout.bytes_at(1000, 64), 0u);
  EXPECT_TRUE(layout.extents_at(1000, 64).empty());
  EXPECT_EQ(layout.virtual_bytes(), kernels::kHostPageBytes);
}

TEST(StateLayout, DictionariesTakeUpWholeChunks) {
  const StateLayout layout(Layers(), kLimits);
  for (int64_t position : kPositions) {
    EXPECT_EQ(layout.DictionaryTokens(position), position - position % kChunkLen);
  }
  EXPECT_EQ(StateLayout({State(3, kernels::GrowsByToken(), 3)}, kLimits).DictionaryTokens(100), 0);
}

TEST(StateLayout, LayersOfOneLawGrowTogether) {
  const StateLayout layout(Layers(), kLimits);
  ASSERT_EQ(layout.growths().size(), 2u);
  EXPECT_EQ(layout.layer(0).growth, 0);
  EXPECT_EQ(layout.layer(1).growth, -1);
  EXPECT_EQ(layout.layer(2).growth, 1);
  EXPECT_EQ(layout.layer(3).growth, 0);
  EXPECT_TRUE(layout.has_slot_cap());
  EXPECT_TRUE(layout.has_unbounded());
  EXPECT_EQ(layout.default_slot_cap(), 300);
  EXPECT_EQ(StateLayout(Layers(), {.max_slot_cap = 50}).default_slot_cap(), 50);
  EXPECT_EQ(StateLayout({State(3, kernels::GrowsByToken(), 3)}, kLimits).default_slot_cap(), 0);
  // Another chunk length is another growth law, hence another group of blocks.
  const StateLayout two(
      {State(1, kernels::GrowsByChunk(8, 64), 1), State(1, kernels::GrowsByChunk(16, 64), 1)},
      kLimits);
  EXPECT_EQ(two.growths().size(), 2u);
}

TEST(StateLayout, ASessionsCapIsSharedOut) {
  const kernels::Growth chunks = kernels::GrowsByChunk(kChunkLen, 300);
  const StateLayout equal({State(3, chunks, 5), State(1, chunks, 5)}, kLimits,
                          StateLayout::kPartAlignment);
  const StateLayout layout(
      {State(3, chunks.WithShares({1.75}), 5), State(1, chunks.WithShares({0.25}), 5)}, kLimits,
      StateLayout::kPartAlignment);
  ASSERT_EQ(layout.growths().size(), 2u);
  EXPECT_EQ(layout.growths()[0].HeadSlotCap(300, 0), 525);
  EXPECT_EQ(layout.growths()[1].HeadSlotCap(300, 0), 75);
  EXPECT_EQ(layout.growths()[1].HeadSlotCap(2, 0), kernels::kMinSlotCap);
  EXPECT_EQ(layout.growths()[0].LiveAt(2999, 300, 0), chunks.live(2999, 525));
  EXPECT_EQ(layout.LiveSlotsAt(2999, 300), (chunks.live(2999, 525) + chunks.live(2999, 75)) / 2);
  EXPECT_EQ(layout.default_slot_cap(), 300);
  EXPECT_NE(layout.fingerprint(), equal.fingerprint());
  // 1,000 slots for each layer, against 1,750 and 250: 16 blocks twice, against 28 and 4.
  EXPECT_EQ(layout.virtual_bytes(), equal.virtual_bytes());
  EXPECT_EQ(layout.bytes_cap(1000), layout.virtual_bytes());
  for (int64_t position : kPositions) {
    EXPECT_LE(layout.bytes_at(position, 300), layout.bytes_cap(300));
  }
}

// Shares that differ in their seventh digit give other caps where sessions have many slots.
TEST(StateLayout, NearlyEqualSharesHaveLawsOfTheirOwn) {
  constexpr int32_t kCap = 1 << 20;
  const kernels::Growth chunks = kernels::GrowsByChunk(kChunkLen, 300);
  const std::vector<kernels::MixerState> layers = {State(1, chunks.WithShares({0.8123456}), 1),
                                                   State(1, chunks.WithShares({0.8123464}), 1)};
  const StateLayout layout(layers, {.max_slot_cap = kCap}, StateLayout::kPartAlignment);
  for (int i = 0; i < 2; ++i) {
    const kernels::Growth& law = layout.growths()[layout.layer(i).growth];
    EXPECT_EQ(law.HeadSlotCap(kCap, 0), layers[i].growth.HeadSlotCap(kCap, 0)) << i;
  }
  EXPECT_NE(layout.fingerprint(),
            StateLayout({layers[0], layers[0]}, {.max_slot_cap = kCap}, StateLayout::kPartAlignment)
                .fingerprint());
}

// A state whose blocks have `heads` heads.
kernels::MixerState StateWithHeads(const kernels::Growth& growth, int heads) {
  kernels::MixerState state{.fixed = {}, .growth = growth, .block = {}, .block_heads = heads};
  std::vector<kernels::StateField> fields;
  for (int head = 0; head < heads; ++head) {
    fields.push_back({"counts", kernels::DType::kU32, kernels::Shape{kernels::kBlockSlots}});
    fields.push_back({"rows", kernels::DType::kU32, kernels::Shape{kernels::kBlockSlots, 3}});
  }
  state.block = kernels::StateFields(std::move(fields));
  return state;
}

TEST(StateLayout, HeadsHaveBlocksOfTheirOwn) {
  const kernels::Growth chunks = kernels::GrowsByChunk(kChunkLen, 300);
  const kernels::Growth by_head = chunks.WithShares({0.5, 2, 0.5});
  EXPECT_EQ(by_head.parts(), 3);
  EXPECT_EQ(by_head.HeadSlotCap(300, 1), 600);
  EXPECT_EQ(by_head.HeadSlotCap(kernels::kMaxSlotCap, 1), kernels::kMaxSlotCap);
  EXPECT_EQ(by_head.MostLiveAt(2999, 300), chunks.live(2999, 600));
  EXPECT_EQ(chunks.WithShares({2, 2, 2}).name, chunks.WithShares({2}).name);
  for (size_t page : kPages) {
    const StateLayout layout(
        {StateWithHeads(by_head, 3), State(5, chunks, 5), StateWithHeads(by_head, 3)}, kLimits,
        page);
    ASSERT_EQ(layout.growths().size(), 2u);
    for (int64_t position : kPositions) {
      for (int64_t cap : kCaps) {
        // Every field lies in one committed range, and in no other field.
        std::vector<std::pair<size_t, size_t>> fields;
        for (int i : {0, 2}) {
          const kernels::MixerState& state = layout.mixers()[i];
          for (int f = 0; f < std::ssize(state.block.list()); ++f) {
            const int64_t live = by_head.LiveAt(position, cap, state.FieldHead(f));
            for (int64_t b = 0; b < kernels::NumBlocks(live); ++b) {
              const size_t begin = layout.layer(i).FieldOffset(state, f, b);
              fields.emplace_back(begin, begin + state.block.list()[f].bytes());
            }
          }
        }
        std::sort(fields.begin(), fields.end());
        const std::vector<kernels::StateExtent> extents = layout.live_extents_at(position, cap);
        for (size_t i = 0; i < fields.size(); ++i) {
          const auto [begin, end] = fields[i];
          if (i > 0) {
            EXPECT_GE(begin, fields[i - 1].second);
          }
          EXPECT_TRUE(std::ranges::any_of(extents, [&](const kernels::StateExtent& extent) {
            return begin >= extent.offset && end <= extent.offset + extent.bytes;
          }));
        }
        size_t bytes = 0;
        for (const kernels::StateExtent& extent : layout.extents_at(position, cap))
          bytes += extent.bytes;
        EXPECT_EQ(layout.bytes_at(position, cap), bytes);
        EXPECT_LE(bytes, layout.bytes_cap(cap));
        EXPECT_LE(layout.bytes_cap(cap), layout.virtual_bytes());
        int64_t of_heads = 0;
        for (int head = 0; head < 3; ++head) of_heads += by_head.LiveAt(position, cap, head);
        EXPECT_EQ(layout.LiveSlotsAt(position, cap),
                  (2 * of_heads + 3 * chunks.live(position, cap)) / 9);
      }
    }
  }
}

TEST(StateLayout, ImagesStandWhereTheirFieldsLie) {
  std::vector<kernels::MixerState> layers = Layers();
  const auto image = std::make_shared<const std::vector<std::byte>>(8, std::byte{7});
  layers[3].fixed =
      kernels::StateFields({{"zero", kernels::DType::kU32, kernels::Shape{5}},
                            {"learned", kernels::DType::kF32, kernels::Shape{2}, {}, image}});
  const StateLayout layout(layers, kLimits);
  ASSERT_EQ(layout.images().size(), 1u);
  EXPECT_EQ(layout.images()[0].offset, layout.layer(3).fixed_offset + layers[3].fixed.offset(1));
  EXPECT_EQ(*layout.images()[0].bytes, *image);
}

// Sizes that do not fit 64 bits are above kMostBytes wherever they arise; none overflows.
TEST(StateLayout, SizesThatDoNotFitAreTheLargest) {
  constexpr int64_t kHuge = int64_t{1} << 61;
  const auto layout = [](std::vector<kernels::MixerState> layers, int64_t tokens) {
    return StateLayout(std::move(layers), {.max_slot_cap = 1000, .max_unbounded_tokens = tokens});
  };
  const auto fixed = [](int64_t words) { return State(words, {}, 0); };
  EXPECT_GT(layout({fixed(kHuge)}, 1).virtual_bytes(), StateLayout::kMostBytes);  // of a field
  EXPECT_GT(layout({fixed(INT64_MAX)}, 1).virtual_bytes(), StateLayout::kMostBytes);
  std::vector<kernels::MixerState> many(4096, fixed(kHuge / 1024));  // of the layers
  EXPECT_GT(layout(many, 1).virtual_bytes(), StateLayout::kMostBytes);
  many.assign(4096, State(0, kernels::GrowsByToken(), kHuge >> 16));  // of a block
  EXPECT_GT(layout(many, 64).virtual_bytes(), StateLayout::kMostBytes);
  many.assign(1024, State(0, kernels::GrowsByToken(), 1 << 23));  // of the blocks: 2^41 bytes each
  EXPECT_LT(layout(many, 1 << 20).virtual_bytes(), StateLayout::kMostBytes);
  EXPECT_GT(layout(many, INT32_MAX).virtual_bytes(), StateLayout::kMostBytes);
}

}  // namespace
}  // namespace ovq::model
