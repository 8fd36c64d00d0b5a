#include "kernels/common/tensor.h"

#include <span>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace ovq::kernels {

std::vector<float> ToFloats(const TensorView& tensor) {
  std::vector<float> values(static_cast<size_t>(tensor.shape.elements()));
  for (size_t i = 0; i < values.size(); ++i) values[i] = FloatAt(tensor, static_cast<int64_t>(i));
  return values;
}

std::string Shape::ToString() const {
  return absl::StrCat("[", absl::StrJoin(std::span(dims_).first(static_cast<size_t>(rank_)), ", "),
                      "]");
}

}  // namespace ovq::kernels
