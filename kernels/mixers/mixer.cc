#include "kernels/mixers/mixer.h"

namespace ovq {
namespace {

constexpr size_t kFieldAlignment = 64;

size_t AlignUp(size_t bytes) {
  return (bytes + kFieldAlignment - 1) / kFieldAlignment * kFieldAlignment;
}

}  // namespace

StateFields::StateFields(std::vector<StateField> fields) : fields_(std::move(fields)) {
  for (const StateField& field : fields_) {
    offsets_.push_back(bytes_);
    bytes_ += AlignUp(static_cast<size_t>(field.shape.elements()) * DTypeBytes(field.dtype));
  }
}

int64_t LiveSlots(const Growth& growth, int64_t position, int64_t slot_cap) {
  switch (growth.law) {
    case Growth::Law::kNone:
      return 0;
    case Growth::Law::kCentroids:
      return CentroidsAt(position / growth.chunk_len * growth.chunk_len, slot_cap);
    case Growth::Law::kTokens:
      return position;
  }
  return 0;
}

}  // namespace ovq
