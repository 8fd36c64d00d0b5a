#include "model/state_layout.h"

#include <algorithm>
#include <limits>
#include <string_view>

#include "base/saturating.h"

namespace ovq::model {
namespace {

// Sizes are products of config values and saturate at the largest number (saturating.h), which
// rounding keeps far above kMostBytes. PlanStateLayout refuses such layouts.
size_t RoundUp(size_t bytes, size_t unit) { return SaturatingAdd(bytes, unit - 1) / unit * unit; }

size_t Sum(const std::vector<kernels::StateExtent>& extents) {
  size_t bytes = 0;
  for (const kernels::StateExtent& extent : extents) bytes = SaturatingAdd(bytes, extent.bytes);
  return bytes;
}

// FNV-1a over everything that decides where a field lies.
class Hasher {
 public:
  void Add(std::string_view text) {
    for (char c : text) AddByte(static_cast<uint8_t>(c));
    AddByte(0);
  }
  void Add(uint64_t value) {
    for (int i = 0; i < 8; ++i) AddByte(static_cast<uint8_t>(value >> (8 * i)));
  }
  void Add(const kernels::StateFields& fields) {
    Add(fields.list().size());
    for (size_t i = 0; i < fields.list().size(); ++i) {
      const kernels::StateField& field = fields.list()[i];
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

size_t StateLayout::Group::bytes_for_slots(int64_t slots) const {
  return SaturatingMultiply(block_bytes, static_cast<size_t>(kernels::NumBlocks(slots)));
}

int64_t StateLayout::MostSlots(const kernels::Growth& growth, int64_t slot_cap, int part) const {
  return growth.capped() ? growth.HeadSlotCap(slot_cap, part) : limits_.max_unbounded_tokens;
}

StateLayout::StateLayout(std::vector<kernels::MixerState> layers, const StateLimits& limits,
                         size_t page_bytes)
    : mixers_(std::move(layers)),
      layers_(mixers_.size()),
      limits_(limits),
      page_bytes_(page_bytes) {
  Check(page_bytes > 0 && page_bytes % kPartAlignment == 0, "size of a page");
  Hasher hasher;
  for (size_t i = 0; i < mixers_.size(); ++i) {
    const kernels::MixerState& state = mixers_[i];
    kernels::LayerState& layer = layers_[i];
    layer.fixed_offset = fixed_bytes_;
    fixed_bytes_ = SaturatingAdd(fixed_bytes_, RoundUp(state.fixed.bytes(), kPartAlignment));
    for (size_t f = 0; f < state.fixed.list().size(); ++f) {
      const auto& initial = state.fixed.list()[f].initial;
      if (!initial) continue;
      images_.push_back({layer.fixed_offset + state.fixed.offset(static_cast<int>(f)), initial});
    }
    hasher.Add(state.fixed);
    hasher.Add(state.block);
    hasher.Add(state.growth.name);
    if (!state.growth.exists()) continue;
    const auto law = std::ranges::find(growths_, state.growth);
    layer.growth = static_cast<int>(law - growths_.begin());
    // The name does not tell a law from one before it of nearly equal shares.
    const auto named = std::ranges::find(growths_, state.growth.name, &kernels::Growth::name);
    if (named != law) hasher.Add(static_cast<uint64_t>(layer.growth));
    if (law == growths_.end()) {
      growths_.push_back(state.growth);
      groups_.emplace_back();
    }
    Group& group = groups_[layer.growth];
    const auto parts = static_cast<size_t>(state.growth.parts());
    layer.blocks_offset = group.block_bytes;  // within a block; the group's offset is added later
    layer.head_stride = state.head_bytes();
    group.block_bytes =
        SaturatingAdd(group.block_bytes, RoundUp(state.block.bytes() / parts, kPartAlignment));
    ++group.n_layers;
  }
  PlaceGroups();
  for (kernels::LayerState& layer : layers_) {
    if (layer.growth < 0) continue;
    const Group& group = groups_[layer.growth];
    layer.blocks_offset += group.offset;
    layer.block_stride = group.block_bytes;
    if (growths_[layer.growth].parts() > 1) layer.head_stride = group.part_stride;
  }
  fingerprint_ = hasher.value();
}

void StateLayout::PlaceGroups() {
  virtual_bytes_ = std::max(RoundUp(fixed_bytes_, page_bytes_), page_bytes_);
  for (size_t i = 0; i < groups_.size(); ++i) {
    Group& group = groups_[i];
    const kernels::Growth& growth = growths_[i];
    int64_t most = 0;
    for (int part = 0; part < growth.parts(); ++part) {
      most = std::max(most, MostSlots(growth, limits_.max_slot_cap, part));
    }
    group.offset = virtual_bytes_;
    group.part_stride = RoundUp(group.bytes_for_slots(most), page_bytes_);
    virtual_bytes_ =
        SaturatingAdd(virtual_bytes_, SaturatingMultiply(group.part_stride, growth.shares.size()));
  }
}

std::vector<kernels::StateExtent> StateLayout::Extents(
    const std::function<int64_t(const kernels::Growth&, int part)>& slots, size_t unit) const {
  std::vector<kernels::StateExtent> extents;
  if (fixed_bytes_ > 0) extents.push_back({0, RoundUp(fixed_bytes_, unit)});
  for (size_t i = 0; i < groups_.size(); ++i) {
    for (int part = 0; part < growths_[i].parts(); ++part) {
      const size_t bytes = groups_[i].bytes_for_slots(slots(growths_[i], part));
      if (bytes == 0) continue;
      extents.push_back({groups_[i].offset + static_cast<size_t>(part) * groups_[i].part_stride,
                         RoundUp(bytes, unit)});
    }
  }
  return extents;
}

std::vector<kernels::StateExtent> StateLayout::ExtentsAt(int64_t position, int64_t slot_cap,
                                                         size_t unit) const {
  const auto live = [&](const kernels::Growth& growth, int part) {
    return growth.LiveAt(position, slot_cap, part);
  };
  return Extents(live, unit);
}

size_t StateLayout::bytes_cap(int64_t slot_cap) const {
  const auto most = [&](const kernels::Growth& growth, int part) {
    return MostSlots(growth, slot_cap, part);
  };
  return Sum(Extents(most, page_bytes_));
}

size_t StateLayout::bytes_at(int64_t position, int64_t slot_cap) const {
  return Sum(extents_at(position, slot_cap));
}

size_t StateLayout::live_bytes_at(int64_t position, int64_t slot_cap) const {
  return Sum(live_extents_at(position, slot_cap));
}

bool StateLayout::has_unbounded() const {
  return !std::ranges::all_of(growths_, &kernels::Growth::capped);
}

const kernels::Growth* StateLayout::capped() const {
  const auto found = std::ranges::find_if(growths_, &kernels::Growth::capped);
  return found == growths_.end() ? nullptr : &*found;
}

int64_t StateLayout::default_slot_cap() const {
  return capped() ? std::min(capped()->default_slot_cap, limits_.max_slot_cap) : 0;
}

int64_t StateLayout::LiveSlotsAt(int64_t position, int64_t slot_cap) const {
  double slots = 0, n_layers = 0;
  for (size_t i = 0; i < groups_.size(); ++i) {
    const kernels::Growth& growth = growths_[i];
    if (!growth.capped()) continue;
    int64_t of_layer = 0;
    for (int part = 0; part < growth.parts(); ++part) {
      of_layer += growth.LiveAt(position, slot_cap, part);
    }
    slots += groups_[i].n_layers * static_cast<double>(of_layer) / growth.parts();
    n_layers += groups_[i].n_layers;
  }
  return n_layers == 0 ? 0 : static_cast<int64_t>(slots / n_layers);
}

int64_t StateLayout::BoundaryAfter(int64_t position) const {
  int64_t boundary = std::numeric_limits<int64_t>::max();
  const auto every = [&](int64_t tokens) {
    boundary = std::min(boundary, (position / tokens + 1) * tokens);
  };
  for (const kernels::MixerState& state : mixers_) {
    if (state.span > 1) every(state.span);
    if (state.growth.exists())
      every(state.growth.capped() ? state.growth.period : kernels::kBlockSlots);
  }
  return boundary;
}

int64_t StateLayout::DictionaryTokens(int64_t position) const {
  return capped() ? position / capped()->period * capped()->period : 0;
}

}  // namespace ovq::model
