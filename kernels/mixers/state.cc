#include "kernels/mixers/state.h"

#include "base/check.h"

namespace ovq {
namespace {

constexpr size_t kFieldAlignment = 64;

size_t AlignUp(size_t bytes) {
  return (bytes + kFieldAlignment - 1) / kFieldAlignment * kFieldAlignment;
}

}  // namespace

StateFields::StateFields(std::vector<StateField> fields) : fields_(std::move(fields)) {
  for (const StateField& field : fields_) {
    Check(!field.initial || field.initial->size() == field.bytes(), field.name);
    offsets_.push_back(bytes_);
    bytes_ += AlignUp(field.bytes());
  }
}

Growth GrowsByToken() {
  return {.name = "token", .live = [](int64_t position, int64_t) { return position; }};
}

}  // namespace ovq
