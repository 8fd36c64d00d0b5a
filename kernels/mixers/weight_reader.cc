#include "kernels/mixers/weight_reader.h"

#include <vector>

#include "absl/strings/str_cat.h"

namespace ovq {

TensorView WeightReader::Take(std::string_view leaf, const Shape& shape) {
  if (!status_.ok()) return {};
  absl::StatusOr<TensorView> view = source_(absl::StrCat(prefix_, std::string(leaf)), shape);
  if (view.ok()) return *view;
  status_ = view.status();
  return {};
}

Buffer WeightReader::Floats(std::string_view leaf, const Shape& shape) {
  const TensorView view = Take(leaf, shape);
  if (!status_.ok()) return {};
  const std::vector<float> values = ToFloats(view);
  return context_.Upload(values.data(), values.size() * sizeof(float));
}

Linear WeightReader::Product(std::initializer_list<WeightPart> parts, int64_t in) {
  std::vector<TensorView> views;
  for (const WeightPart& part : parts) views.push_back(Take(part.leaf, {part.rows, in}));
  if (!status_.ok()) return {};
  absl::StatusOr<Linear> product = Linear::Make(views, compute_, context_);
  if (product.ok()) return *std::move(product);
  status_ = product.status();
  return {};
}

}  // namespace ovq
