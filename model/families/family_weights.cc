#include "model/families/family_weights.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "base/status_macros.h"

namespace ovq::model {

absl::StatusOr<kernels::TensorView> FamilyWeights::GetTensor(std::string_view name,
                                                             const kernels::Shape& shape) {
  const std::vector<TensorInFile> places = config_.family->tensor(config_, name, shape);
  const auto there = std::ranges::find_if(
      places, [&](const TensorInFile& place) { return weights_.Has(place.name); });
  const TensorInFile& place = there == places.end() ? places.front() : *there;
  ASSIGN_OR_RETURN(const kernels::TensorView whole, weights_.GetTensor(place.name, place.shape));
  kernels::TensorView view = whole;
  view.shape = shape;
  if (place.run == 0) return view;

  const size_t element = kernels::DTypeBytes(view.dtype),
               run = static_cast<size_t>(place.run) * element;
  const int64_t n_runs = shape.elements() / place.run;
  Check(n_runs * place.run == shape.elements() &&
            place.first + (n_runs - 1) * place.stride + place.run <= place.shape.elements(),
        "a part lies in its tensor");
  const std::byte* from = whole.as<std::byte>() + static_cast<size_t>(place.first) * element;
  view.data = const_cast<std::byte*>(from);
  if (n_runs == 1) return view;
  std::vector<std::byte>& copy = copies_.emplace_back(run * static_cast<size_t>(n_runs));
  for (int64_t i = 0; i < n_runs; ++i) {
    std::memcpy(copy.data() + static_cast<size_t>(i) * run,
                from + static_cast<size_t>(i * place.stride) * element, run);
  }
  view.data = copy.data();
  return view;
}

}  // namespace ovq::model
