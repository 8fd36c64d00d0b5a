#include "model/state_layout.h"

#include <algorithm>
#include <string_view>

namespace ovq {
namespace {

size_t RoundUpToPage(size_t bytes) {
  return (bytes + StateLayout::kPageBytes - 1) / StateLayout::kPageBytes * StateLayout::kPageBytes;
}

int64_t Blocks(int64_t slots) { return (slots + kBlockSlots - 1) / kBlockSlots; }

// FNV-1a, over the bytes that decide where a field lies.
class Hasher {
 public:
  void Add(std::string_view text) {
    for (char c : text) AddByte(static_cast<uint8_t>(c));
    AddByte(0);
  }
  void Add(uint64_t value) {
    for (int i = 0; i < 8; ++i) AddByte(static_cast<uint8_t>(value >> (8 * i)));
  }
  void Add(const StateFields& fields) {
    Add(fields.list().size());
    for (size_t i = 0; i < fields.list().size(); ++i) {
      const StateField& field = fields.list()[i];
      Add(field.name);
      Add(static_cast<uint64_t>(field.dtype));
      Add(field.shape.ToString());
      Add(fields.offset(static_cast<int>(i)));
    }
  }
  uint64_t value() const { return hash_; }

 private:
  void AddByte(uint8_t byte) { hash_ = (hash_ ^ byte) * 0x100000001b3ull; }
  uint64_t hash_ = 0xcbf29ce484222325ull;
};

}  // namespace

StateLayout::StateLayout(const std::vector<MixerState>& layers, const StateLimits& limits)
    : layers_(layers.size()), limits_(limits) {
  Hasher hasher;
  std::vector<int> group_of(layers.size(), -1);
  for (size_t i = 0; i < layers.size(); ++i) {
    const MixerState& state = layers[i];
    layers_[i].fixed_offset = fixed_bytes_;
    fixed_bytes_ += state.fixed.bytes();
    hasher.Add(state.fixed);
    hasher.Add(state.block);
    hasher.Add(static_cast<uint64_t>(state.growth.law));
    hasher.Add(static_cast<uint64_t>(state.growth.chunk_len));
    if (state.growth.law == Growth::Law::kNone) continue;
    const auto group = std::find_if(groups_.begin(), groups_.end(),
                                    [&](const Group& g) { return g.growth == state.growth; });
    group_of[i] = static_cast<int>(group - groups_.begin());
    if (group == groups_.end()) groups_.push_back({.growth = state.growth});
    Group& mine = groups_[group_of[i]];
    layers_[i].blocks_offset = mine.block_bytes;  // within a block; the group's offset follows
    mine.block_bytes += state.block.bytes();
  }
  fixed_bytes_ = RoundUpToPage(fixed_bytes_);
  virtual_bytes_ = std::max(fixed_bytes_, kPageBytes);
  for (Group& group : groups_) {
    group.block_bytes = RoundUpToPage(group.block_bytes);
    group.offset = virtual_bytes_;
    const int64_t slots = group.growth.law == Growth::Law::kTokens ? limits.max_unbounded_tokens
                                                                   : limits.max_centroids;
    virtual_bytes_ += group.block_bytes * static_cast<size_t>(Blocks(slots));
  }
  for (size_t i = 0; i < layers.size(); ++i) {
    if (group_of[i] < 0) continue;
    layers_[i].blocks_offset += groups_[group_of[i]].offset;
    layers_[i].block_stride = groups_[group_of[i]].block_bytes;
  }
  fingerprint_ = hasher.value();
}

std::vector<StateExtent> StateLayout::extents_at(int64_t position, int64_t max_centroids) const {
  std::vector<StateExtent> extents;
  if (fixed_bytes_ > 0) extents.push_back({0, fixed_bytes_});
  for (const Group& group : groups_) {
    const int64_t slots = LiveSlots(group.growth, position, max_centroids);
    if (slots == 0) continue;
    extents.push_back({group.offset, group.block_bytes * static_cast<size_t>(Blocks(slots))});
  }
  return extents;
}

size_t StateLayout::bytes_at(int64_t position, int64_t max_centroids) const {
  size_t bytes = fixed_bytes_;
  for (const Group& group : groups_) {
    bytes += group.block_bytes *
             static_cast<size_t>(Blocks(LiveSlots(group.growth, position, max_centroids)));
  }
  return bytes;
}

size_t StateLayout::bytes_cap(int64_t max_centroids) const {
  size_t bytes = fixed_bytes_;
  for (const Group& group : groups_) {
    const bool tokens = group.growth.law == Growth::Law::kTokens;
    bytes += group.block_bytes *
             static_cast<size_t>(Blocks(tokens ? limits_.max_unbounded_tokens : max_centroids));
  }
  return bytes;
}

bool StateLayout::has_unbounded() const {
  return std::any_of(groups_.begin(), groups_.end(),
                     [](const Group& g) { return g.growth.law == Growth::Law::kTokens; });
}

bool StateLayout::has_centroids() const {
  return std::any_of(groups_.begin(), groups_.end(),
                     [](const Group& g) { return g.growth.law == Growth::Law::kCentroids; });
}

int64_t StateLayout::LiveCentroids(int64_t position, int64_t max_centroids) const {
  for (const Group& group : groups_) {
    if (group.growth.law != Growth::Law::kCentroids) continue;
    return LiveSlots(group.growth, position, max_centroids);
  }
  return 0;
}

}  // namespace ovq
