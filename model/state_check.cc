#include "model/state_check.h"

#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "kernels/mixers/state_check.h"

namespace ovq::model {
namespace {

// Whether these are the bytes of a new session.
bool IsNew(const StateLayout& layout, std::span<const std::byte> state) {
  std::vector<std::byte> expected(state.size());
  for (const StateLayout::Image& image : layout.images()) {
    std::ranges::copy(*image.bytes, expected.begin() + static_cast<std::ptrdiff_t>(image.offset));
  }
  return std::ranges::equal(state, expected);
}

// at: maps an offset from the session's base to its address.
absl::Status CheckLayers(const StateLayout& layout, int64_t position, int64_t slot_cap,
                         const auto& at) {
  for (size_t i = 0; i < layout.mixers().size(); ++i) {
    const kernels::MixerState& mixer = layout.mixers()[i];
    const kernels::LayerState& where = layout.layer(static_cast<int>(i));
    const absl::Status status = kernels::CheckLayer({mixer, where, position, slot_cap, at});
    if (!status.ok()) {
      return absl::Status(status.code(), absl::StrCat("state of layer ", i, ", ", mixer.name, ": ",
                                                      std::string(status.message())));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckState(const StateLayout& layout, int64_t position, int64_t slot_cap,
                        std::span<const std::byte> state) {
  const size_t bytes = layout.live_bytes_at(position, slot_cap);
  if (state.size() != bytes) {
    return absl::DataLossError(absl::StrCat("state of ", state.size(), " bytes, expected ", bytes));
  }
  // The prefix cache relies on it: every sequence must start from the same state.
  if (position == 0 && !IsNew(layout, state)) {
    return absl::DataLossError("state: not the one that sessions begin with, at position 0");
  }
  const std::vector<kernels::StateExtent> extents = layout.live_extents_at(position, slot_cap);
  const auto at = [&](size_t offset) {
    const std::byte* begin = state.data();
    for (const kernels::StateExtent& extent : extents) {
      if (offset - extent.offset < extent.bytes) return begin + (offset - extent.offset);
      begin += extent.bytes;
    }
    return begin;
  };
  return CheckLayers(layout, position, slot_cap, at);
}

absl::Status CheckState(const StateLayout& layout, int64_t position, int64_t slot_cap,
                        const std::byte* base) {
  Check(position > 0, "a new session's state comes from no file");
  return CheckLayers(layout, position, slot_cap, [base](size_t offset) { return base + offset; });
}

}  // namespace ovq::model
