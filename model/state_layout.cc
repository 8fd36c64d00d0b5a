#include "model/state_layout.h"

#include <algorithm>
#include <string_view>

namespace ovq {
namespace {

size_t RoundUp(size_t bytes, size_t unit) { return (bytes + unit - 1) / unit * unit; }

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

size_t StateLayout::Group::bytes_of(int64_t slots) const {
  return block_bytes * static_cast<size_t>((slots + kBlockSlots - 1) / kBlockSlots);
}

size_t StateLayout::WholePages(size_t bytes) const { return RoundUp(bytes, page_bytes_); }

int64_t StateLayout::MostSlots(const Group& group, int64_t slot_cap) const {
  return group.growth.law == Growth::Law::kTokens ? limits_.max_unbounded_tokens : slot_cap;
}

StateLayout::StateLayout(const std::vector<MixerState>& layers, const StateLimits& limits,
                         size_t page_bytes)
    : layers_(layers.size()), limits_(limits), page_bytes_(page_bytes) {
  Check(page_bytes > 0 && page_bytes % kPartAlignment == 0, "size of a page");
  Hasher hasher;
  std::vector<int> group_of(layers.size(), -1);
  for (size_t i = 0; i < layers.size(); ++i) {
    const MixerState& state = layers[i];
    layers_[i].fixed_offset = fixed_bytes_;
    fixed_bytes_ += RoundUp(state.fixed.bytes(), kPartAlignment);
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
    mine.block_bytes += RoundUp(state.block.bytes(), kPartAlignment);
  }
  virtual_bytes_ = std::max(WholePages(fixed_bytes_), page_bytes);
  for (Group& group : groups_) {
    group.offset = virtual_bytes_;
    virtual_bytes_ += WholePages(group.bytes_of(MostSlots(group, limits.max_slot_cap)));
  }
  for (size_t i = 0; i < layers.size(); ++i) {
    if (group_of[i] < 0) continue;
    layers_[i].blocks_offset += groups_[group_of[i]].offset;
    layers_[i].block_stride = groups_[group_of[i]].block_bytes;
  }
  fingerprint_ = hasher.value();
}

std::vector<StateExtent> StateLayout::live_extents_at(int64_t position, int64_t slot_cap) const {
  std::vector<StateExtent> extents;
  if (fixed_bytes_ > 0) extents.push_back({0, fixed_bytes_});
  for (const Group& group : groups_) {
    const int64_t slots = LiveSlots(group.growth, position, slot_cap);
    if (slots > 0) extents.push_back({group.offset, group.bytes_of(slots)});
  }
  return extents;
}

std::vector<StateExtent> StateLayout::extents_at(int64_t position, int64_t slot_cap) const {
  std::vector<StateExtent> extents = live_extents_at(position, slot_cap);
  for (StateExtent& extent : extents) extent.bytes = WholePages(extent.bytes);
  return extents;
}

size_t StateLayout::live_bytes_at(int64_t position, int64_t slot_cap) const {
  size_t bytes = fixed_bytes_;
  for (const Group& group : groups_) {
    bytes += group.bytes_of(LiveSlots(group.growth, position, slot_cap));
  }
  return bytes;
}

size_t StateLayout::bytes_at(int64_t position, int64_t slot_cap) const {
  size_t bytes = WholePages(fixed_bytes_);
  for (const Group& group : groups_) {
    bytes += WholePages(group.bytes_of(LiveSlots(group.growth, position, slot_cap)));
  }
  return bytes;
}

size_t StateLayout::bytes_cap(int64_t slot_cap) const {
  size_t bytes = WholePages(fixed_bytes_);
  for (const Group& group : groups_) {
    bytes += WholePages(group.bytes_of(MostSlots(group, slot_cap)));
  }
  return bytes;
}

bool StateLayout::has_unbounded() const {
  return std::any_of(groups_.begin(), groups_.end(),
                     [](const Group& g) { return g.growth.law == Growth::Law::kTokens; });
}

bool StateLayout::has_slot_cap() const {
  return std::any_of(groups_.begin(), groups_.end(),
                     [](const Group& g) { return g.growth.law == Growth::Law::kCentroids; });
}

int64_t StateLayout::LiveSlotsAt(int64_t position, int64_t slot_cap) const {
  for (const Group& group : groups_) {
    if (group.growth.law != Growth::Law::kCentroids) continue;
    return LiveSlots(group.growth, position, slot_cap);
  }
  return 0;
}

int64_t StateLayout::DictionaryTokens(int64_t position) const {
  for (const Group& group : groups_) {
    if (group.growth.law != Growth::Law::kCentroids) continue;
    return position / group.growth.chunk_len * group.growth.chunk_len;
  }
  return 0;
}

}  // namespace ovq
