// The state pool on every device.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "kernels/common/state_memory.h"
#include "kernels/mixers/ovq/ovq.h"
#include "server/engine/common/state_pool.h"
#include "tests/test_util.h"

namespace ovq::engine {
namespace {

using StateBytes = std::vector<std::byte>;

constexpr int32_t kCap = 4096;
// From no page to several pages of 2 MiB in both groups, across block and page boundaries.
constexpr int64_t kPositions[] = {0, 1, 63, 64, 65, 4000, 4096, 4097, 20000, 70000};
constexpr int64_t kLastPosition = 70000;
constexpr size_t kBudget = size_t{256} << 20;

// Its fixed part and its blocks end inside pages. The groups come to several pages of 2 MiB, one of
// them to three copies, which take 4 MiB each.
std::vector<kernels::MixerState> Layers() {
  const kernels::Growth centroids = kernels::GrowsByChunk(4, kCap),
                        tokens = kernels::GrowsByToken();
  return {{.fixed = kernels::StateFields({{"counter", kernels::DType::kU32, kernels::Shape{2}}}),
           .growth = centroids,
           .block = kernels::StateFields(
               {{"rows", kernels::DType::kU32, kernels::Shape{kernels::kBlockSlots, 131}}})},
          {.fixed = kernels::StateFields({{"window", kernels::DType::kF32, kernels::Shape{1500}}}),
           .growth = {},
           .block = {}},
          {.fixed = {},
           .growth = tokens,
           .block = kernels::StateFields(
               {{"rows", kernels::DType::kU32, kernels::Shape{kernels::kBlockSlots, 41}}})}};
}

model::StateLayout LayoutFor(size_t page_bytes) {
  return model::StateLayout(Layers(), {.max_slot_cap = kCap, .max_unbounded_tokens = kLastPosition},
                            page_bytes);
}

StateBytes Pattern(size_t n, uint64_t seed) {
  StateBytes bytes(n);
  for (std::byte& byte : bytes) {
    seed = seed * 6364136223846793005ull + 1442695040888963407ull;
    byte = static_cast<std::byte>(seed >> 56);
  }
  return bytes;
}

class StatePoolDevice : public testing::TestWithParam<kernels::Device> {
 protected:
  void SetUp() override {
    const std::string missing = kernels::test::WhyNoDevice(GetParam());
    if (!missing.empty()) GTEST_SKIP() << missing;
    context_ = kernels::test::MakeContext(GetParam());
    memory_.emplace(*context_);
    layout_.emplace(LayoutFor(kernels::StatePageBytes(*context_)));
  }

  StateBytes Read(const kernels::StateExtent& extent, const StateHandle& state) {
    StateBytes bytes(extent.bytes);
    context_->CopyToHost(bytes.data(), state.base + extent.offset, extent.bytes);
    return bytes;
  }
  // Writes all committed bytes, which no kernel does.
  void Fill(const StateHandle& state, std::byte value) {
    for (const kernels::StateExtent& extent : layout_->extents_at(state.position, state.slot_cap)) {
      const StateBytes bytes(extent.bytes, value);
      memory_->CopyIn(state.base + extent.offset, bytes.data(), bytes.size());
    }
  }
  // Writes the bytes that a kernel may write, and returns them.
  StateBytes FillLive(StatePool& pool, const StateHandle& state, uint64_t seed) {
    const StateBytes bytes = Pattern(pool.SnapshotBytes(state), seed);
    size_t at = 0;
    for (const kernels::StateExtent& extent :
         layout_->live_extents_at(state.position, state.slot_cap)) {
      memory_->CopyIn(state.base + extent.offset, bytes.data() + at, extent.bytes);
      at += extent.bytes;
    }
    return bytes;
  }
  void ExpectZero(const StateHandle& state) {
    for (const kernels::StateExtent& extent : layout_->extents_at(state.position, state.slot_cap)) {
      EXPECT_TRUE(Read(extent, state) == StateBytes(extent.bytes)) << "extent at " << extent.offset;
    }
  }
  StateBytes Snapshot(StatePool& pool, const StateHandle& state) {
    StateBytes bytes(pool.SnapshotBytes(state));
    pool.CopyOut(state, bytes);
    return bytes;
  }

  std::unique_ptr<kernels::DeviceContext> context_;
  std::optional<kernels::StateMemory> memory_;
  std::optional<model::StateLayout> layout_;
};

TEST_P(StatePoolDevice, NewStatesBeginWithTheirImages) {
  std::vector<kernels::MixerState> layers = Layers();
  const auto image = std::make_shared<const StateBytes>(Pattern(6000, 3));
  layers[1].fixed =
      kernels::StateFields({{"learned", kernels::DType::kF32, kernels::Shape{1500}, {}, image}});
  const model::StateLayout layout(layers, layout_->limits(), layout_->page_bytes());
  StatePool pool(kBudget, *context_);
  for (int i = 0; i < 2; ++i) {  // the second time in used memory
    StateHandle state = *pool.Acquire(layout, kCap, layout.bytes_cap(kCap));
    EXPECT_TRUE(Read({layout.layer(1).fixed_offset, image->size()}, state) == *image);
    EXPECT_TRUE(Read({layout.layer(0).fixed_offset, 8}, state) == StateBytes(8));
    Fill(state, std::byte{9});
    pool.Release(state);
  }
}

// More extents than one launch on a GPU takes, in pieces of every size.
TEST_P(StatePoolDevice, PackedExtentsComeBackAndNothingElseChanges) {
  StatePool pool(kBudget, *context_);
  StateHandle state = *pool.Acquire(*layout_, kCap, layout_->bytes_cap(kCap));
  pool.Grow(state, 300);
  std::vector<kernels::StateExtent> extents;
  size_t total = 0;
  const size_t window = layout_->layer(1).fixed_offset;
  for (size_t i = 0; i < 70; ++i) {
    const size_t bytes = i % 9 == 8 ? 24 : 1 + i % 9;
    extents.push_back({window + i * 80, bytes, 1 + i % 3, 26});
    total += extents.back().total_bytes();
  }
  StateBytes expected = FillLive(pool, state, 5);
  const kernels::Buffer packed(context_->device(), total);
  pool.Pack(state, extents, packed.as<std::byte>());
  StateBytes held(total);
  context_->CopyToHost(held.data(), packed.as<std::byte>(), total);
  const StateBytes after = FillLive(pool, state, 6);
  pool.Unpack(state, extents, packed.as<std::byte>());
  // The fixed part begins a snapshot.
  StateBytes mixed = after;
  size_t at = 0;
  for (const kernels::StateExtent& extent : extents) {
    for (size_t i = 0; i < extent.pieces; ++i, at += extent.bytes) {
      const auto place = static_cast<std::ptrdiff_t>(extent.offset + i * extent.stride);
      ASSERT_EQ(std::memcmp(&held[at], &expected[static_cast<size_t>(place)], extent.bytes), 0);
      std::copy_n(expected.begin() + place, extent.bytes, mixed.begin() + place);
    }
  }
  EXPECT_TRUE(Snapshot(pool, state) == mixed);
  pool.Release(state);
}

TEST_P(StatePoolDevice, BytesAreExactNewOnesZeroAndOldOnesKept) {
  StatePool pool(kBudget, *context_);
  const size_t page = memory_->page_bytes();
  StateHandle state = *pool.Acquire(*layout_, kCap, layout_->bytes_cap(kCap));
  // Value of all bytes of a page: its number, or 0 if nothing was written.
  std::vector<unsigned char> written(layout_->virtual_bytes() / page);
  for (int64_t position : kPositions) {
    pool.Grow(state, position);
    ASSERT_EQ(state.committed_bytes, layout_->bytes_at(position, kCap)) << position;
    EXPECT_EQ(pool.committed_bytes(), state.committed_bytes);
    for (const kernels::StateExtent& extent : layout_->extents_at(position, kCap)) {
      StateBytes bytes = Read(extent, state);
      for (size_t at = 0; at < bytes.size(); at += page) {
        unsigned char& number = written[(extent.offset + at) / page];
        const StateBytes expected(page, std::byte{number});
        ASSERT_EQ(std::memcmp(bytes.data() + at, expected.data(), page), 0)
            << "page at " << extent.offset + at << ", position " << position;
        number = static_cast<unsigned char>((extent.offset + at) / page % 255 + 1);
        std::memset(bytes.data() + at, number, page);
      }
      memory_->CopyIn(state.base + extent.offset, bytes.data(), bytes.size());
    }
  }
  pool.Release(state);
  EXPECT_EQ(pool.committed_bytes(), 0u);
  EXPECT_EQ(pool.reserved_bytes(), 0u);
  EXPECT_EQ(pool.sessions(), 0);
}

TEST_P(StatePoolDevice, NothingOfAReleasedStateIsSeen) {
  StatePool pool(kBudget, *context_);
  const size_t cap = layout_->bytes_cap(kCap);
  for (int round = 0; round < 3; ++round) {
    std::vector<StateHandle> states;
    for (int64_t position : {int64_t{70000}, int64_t{65}, int64_t{20000}}) {
      states.push_back(*pool.Acquire(*layout_, kCap, cap));
      ExpectZero(states.back());
      pool.Grow(states.back(), position);
      ExpectZero(states.back());
      Fill(states.back(), std::byte{0xee});
    }
    // The middle state is released and acquired again beside the others.
    pool.Release(states[1]);
    states[1] = *pool.Acquire(*layout_, 64, layout_->bytes_cap(64));
    pool.Grow(states[1], 4097);
    ExpectZero(states[1]);
    Fill(states[1], std::byte{0xdd});
    for (StateHandle& state : states) pool.Release(state);
  }
}

TEST_P(StatePoolDevice, SteadyUseTakesNoMoreOfTheGpu) {
  auto pool = std::make_unique<StatePool>(kBudget, *context_);
  const auto use = [&] {
    StateHandle a = *pool->Acquire(*layout_, kCap, layout_->bytes_cap(kCap));
    StateHandle b = *pool->Acquire(*layout_, kCap, layout_->bytes_cap(kCap));
    pool->Grow(a, 20000);
    pool->Grow(b, 70000);
    const size_t committed = pool->committed_bytes();
    pool->Release(b);
    pool->Release(a);
    return committed;
  };
  const std::optional<kernels::GpuInfo> before = context_->Gpu();
  EXPECT_EQ(before.has_value(), GetParam() == kernels::Device::kCuda);
  const size_t committed = use();
  if (!before) return;
  EXPECT_FALSE(before->name.empty());
  EXPECT_LE(before->free_bytes, before->total_bytes);
  // Inequalities, because the driver may take a little for itself.
  const size_t kept = context_->Gpu()->free_bytes;
  EXPECT_LE(kept + committed, before->free_bytes);
  for (int i = 0; i < 5; ++i) use();
  EXPECT_GT(context_->Gpu()->free_bytes + committed, kept);
  pool.reset();
  EXPECT_GE(context_->Gpu()->free_bytes, kept + committed);
}

TEST_P(StatePoolDevice, AClonesBytesAreItsOwn) {
  StatePool pool(kBudget, *context_);
  const size_t cap = layout_->bytes_cap(kCap);
  StateHandle state = *pool.Acquire(*layout_, kCap, cap);
  pool.Grow(state, 4097);
  const StateBytes bytes = FillLive(pool, state, 1);
  StateHandle clone = *pool.Clone(state, cap);
  EXPECT_EQ(clone.position, 4097);
  EXPECT_EQ(clone.committed_bytes, state.committed_bytes);
  const StateBytes others = FillLive(pool, state, 2);
  EXPECT_TRUE(Snapshot(pool, clone) == bytes);
  EXPECT_TRUE(Snapshot(pool, state) == others);
  pool.Release(state);
  pool.Grow(clone, 20000);
  pool.Release(clone);
}

// A snapshot from one device, with its page size, moves to any other and comes back unchanged.
TEST_P(StatePoolDevice, SnapshotsMoveBetweenDevices) {
  for (int64_t position : kPositions) {
    StatePool pool(kBudget, *context_);
    StateHandle state = *pool.Acquire(*layout_, kCap, layout_->bytes_cap(kCap));
    pool.Grow(state, position);
    const StateBytes bytes = FillLive(pool, state, 3);
    ASSERT_EQ(bytes.size(), layout_->live_bytes_at(position, kCap));
    ASSERT_TRUE(Snapshot(pool, state) == bytes) << position;
    pool.Release(state);

    auto host = kernels::test::MakeContext(kernels::Device::kCpu);
    const model::StateLayout large_pages = LayoutFor(size_t{64} << 10);
    StatePool elsewhere(kBudget, *host);
    StateHandle moved = *elsewhere.Acquire(large_pages, kCap, large_pages.bytes_cap(kCap));
    EXPECT_TRUE(elsewhere.CopyIn(moved, position, bytes).ok());
    const StateBytes there = Snapshot(elsewhere, moved);
    EXPECT_TRUE(there == bytes) << position;
    elsewhere.Release(moved);

    StateHandle back = *pool.Acquire(*layout_, kCap, layout_->bytes_cap(kCap));
    EXPECT_TRUE(pool.CopyIn(back, position, there).ok());
    EXPECT_EQ(back.position, position);
    EXPECT_TRUE(Snapshot(pool, back) == bytes) << position;
    pool.Release(back);
  }
}

INSTANTIATE_TEST_SUITE_P(Devices, StatePoolDevice, testing::ValuesIn(kernels::test::TestDevices()),
                         [](const auto& info) {
                           return std::string(kernels::DeviceName(info.param));
                         });

}  // namespace
}  // namespace ovq::engine
