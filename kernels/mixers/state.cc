#include "kernels/mixers/state.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/check.h"

namespace ovq::kernels {
namespace {

constexpr size_t kFieldAlignment = 64;

size_t AlignUp(size_t bytes) {
  return SaturatingAdd(bytes, kFieldAlignment - 1) / kFieldAlignment * kFieldAlignment;
}

}  // namespace

StateFields::StateFields(std::vector<StateField> fields) : fields_(std::move(fields)) {
  for (const StateField& field : fields_) {
    Check(!field.initial || field.initial->size() == field.bytes(), field.name);
    offsets_.push_back(bytes_);
    bytes_ = SaturatingAdd(bytes_, AlignUp(field.bytes()));
  }
}

Growth Growth::WithShares(std::vector<double> slot_cap_shares) const {
  Growth shared = *this;
  shared.shares = std::move(slot_cap_shares);
  if (std::ranges::adjacent_find(shared.shares, std::not_equal_to<>()) == shared.shares.end()) {
    shared.shares.resize(1);
  }
  if (shared.shares != std::vector<double>{1}) {
    absl::StrAppend(&shared.name, ", of ", absl::StrJoin(shared.shares, " and "), " N");
  }
  return shared;
}

int64_t Growth::HeadSlotCap(int64_t slot_cap, int head) const {
  return std::clamp<int64_t>(std::llround(head_share(head) * static_cast<double>(slot_cap)),
                             kMinSlotCap, kMaxSlotCap);
}

int64_t Growth::MostLiveAt(int64_t position, int64_t slot_cap) const {
  const auto most = std::ranges::max_element(shares);
  return LiveAt(position, slot_cap, static_cast<int>(most - shares.begin()));
}

size_t LayerState::FieldOffset(const MixerState& state, int field, int64_t block) const {
  return PartOffset(state.FieldHead(field)) + static_cast<size_t>(block) * block_stride +
         state.block.offset(field % state.fields_per_head());
}

StatePlace LayerState::FixedPlace(const MixerState& state, int field) const {
  const StateField& of = state.fixed.list()[field];
  const size_t head = of.bytes() / static_cast<size_t>(of.shape[0]);
  return {fixed_offset + state.fixed.offset(field), head, head / static_cast<size_t>(of.shape[1])};
}

std::vector<StateExtent> LayerState::BlockExtents(const MixerState& state, int part, int64_t first,
                                                  int64_t end) const {
  const size_t bytes = state.block.bytes() / static_cast<size_t>(state.growth.parts());
  std::vector<StateExtent> extents;
  for (int64_t b = first; b < end; ++b) {
    extents.push_back({PartOffset(part) + static_cast<size_t>(b) * block_stride, bytes});
  }
  return extents;
}

Growth GrowsByToken() {
  return {.name = "token", .live = [](int64_t position, int64_t) { return position; }};
}

}  // namespace ovq::kernels
