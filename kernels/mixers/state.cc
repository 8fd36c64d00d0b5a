#include "kernels/mixers/state.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "base/check.h"

namespace ovq {
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

Growth Growth::WithShare(double of_slot_cap) const {
  Growth shared = *this;
  shared.share = of_slot_cap;
  if (of_slot_cap != 1) absl::StrAppend(&shared.name, ", of ", of_slot_cap, " N");
  return shared;
}

int64_t Growth::CapOf(int64_t slot_cap) const {
  return std::max<int64_t>(kMinSlotCap, std::llround(share * static_cast<double>(slot_cap)));
}

Growth GrowsByToken() {
  return {.name = "token", .live = [](int64_t position, int64_t) { return position; }};
}

}  // namespace ovq
