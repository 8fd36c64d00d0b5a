#include "kernels/ops/experts.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "base/check.h"
#include "base/status_macros.h"
#include "kernels/ops/matmul_device.h"

namespace ovq::kernels {
namespace {

// The rows of a tile: few where an expert has few, because a tile computes all of its rows.
int TileRows(int64_t n_places, int n_experts) {
  const int64_t mean = n_places / n_experts;
  return mean <= 4 ? 8 : mean <= 10 ? 16 : mean <= 48 ? 64 : 128;
}

}  // namespace

Routes::Routes(ScratchScope& scope, const RouterSpec& router, int64_t n_rows)
    : n_rows(n_rows), n_experts(router.n_experts), n_chosen(router.n_chosen) {
  const auto n = static_cast<size_t>(n_places());
  weights = scope.Allocate<float>(n);
  places = scope.Allocate<int32_t>(n);
  rows = scope.Allocate<int32_t>(n);
  begin = scope.Allocate<int32_t>(static_cast<size_t>(n_experts) + 1);
  // Each tile of an expert but one has tile_rows of its places.
  tile_rows = TileRows(n_places(), n_experts);
  const int64_t n_used = std::min<int64_t>(n_experts, n_places());
  n_tiles = n_used + (n_places() - n_used) / tile_rows;
  tiles = scope.Allocate<ExpertTile>(static_cast<size_t>(n_tiles));
}

void PlaceRows(std::span<const int32_t> chosen, const Routes& routes) {
  std::fill_n(routes.begin, routes.n_experts + 1, 0);
  for (const int32_t expert : chosen) ++routes.begin[expert + 1];
  std::partial_sum(routes.begin, routes.begin + routes.n_experts + 1, routes.begin);
  std::vector<int32_t> next(routes.begin, routes.begin + routes.n_experts);
  for (size_t pair = 0; pair < chosen.size(); ++pair) {
    const int32_t place = next[chosen[pair]]++;
    routes.places[pair] = place;
    routes.rows[place] = static_cast<int32_t>(pair) / routes.n_chosen;
  }
}

void Route(DeviceContext& context, const RouterSpec& router, const float* bias, TensorView logits,
           const Routes& routes) {
  const int group = router.n_groups > 0 ? router.n_experts / router.n_groups : 0;
  Check(router.n_chosen > 0 && router.n_experts <= kMaxExperts && group > 0 &&
            group * router.n_groups == router.n_experts &&
            router.n_kept_groups <= router.n_groups &&
            router.n_chosen <= router.n_kept_groups * group,
        "Route: groups of equal size, whose kept ones hold the chosen experts");
  Check(logits.dtype == DType::kF32 && logits.shape.rank() == 2 &&
            logits.shape[0] == routes.n_rows && logits.shape[1] >= router.n_experts,
        "Route: a float32 logit for each row and expert");
  if (routes.n_rows > 0) {
    Dispatch<cpu::Route, cuda::Route>(context, router, bias, logits, routes);
  }
}

void SumExperts(DeviceContext& context, const Routes& routes, const ExpertSum& sum) {
  const int64_t width = sum.h.shape[1];
  Check(sum.y.dtype == DType::kF32 && sum.h.dtype == DType::kF32 &&
            sum.h.shape == Shape{routes.n_rows, width} &&
            sum.y.shape == Shape{routes.n_places(), width},
        "SumExperts: float32, y has a row for each place and h for each row");
  Check((sum.shared == nullptr) == (sum.gate == nullptr), "SumExperts: what is shared has a gate");
  if (routes.n_rows > 0) Dispatch<cpu::SumExperts, cuda::SumExperts>(context, routes, sum);
}

absl::StatusOr<ExpertLinear> ExpertLinear::Make(std::span<const TensorView> parts, int n_experts,
                                                ProductTypes types, DeviceContext& context) {
  Check(n_experts > 0 && parts.size() % static_cast<size_t>(n_experts) == 0 && !parts.empty(),
        "ExpertLinear: the same parts of every expert");
  const size_t n_parts = parts.size() / static_cast<size_t>(n_experts);
  ExpertLinear all;
  std::vector<StackedWeights> for_cuda;
  for (size_t i = 0; i < parts.size(); i += n_parts) {
    const std::span<const TensorView> expert = parts.subspan(i, n_parts);
    ASSIGN_OR_RETURN(const StackedWeights weights, Stack(expert, types, context));
    all.in_ = weights.in, all.out_ = weights.out;
    if (kWithCuda && context.device() == Device::kCuda) {
      for_cuda.push_back(weights);
      continue;
    }
    ASSIGN_OR_RETURN(Linear product, Linear::Make(expert, types, context));
    all.experts_.push_back(std::move(product));
  }
  if constexpr (kWithCuda) {
    if (for_cuda.empty()) return all;
    all.product_ = cuda::MakeExpertProduct(context, for_cuda, types.weights);
  }
  return all;
}

void ExpertLinear::Apply(DeviceContext& context, const Routes& routes, TensorView x,
                         TensorView y) const {
  Check(y.dtype == DType::kF32 && (x.shape == Shape{routes.n_places(), in_}) &&
            (y.shape == Shape{routes.n_places(), out_}),
        "ExpertLinear: x and y have a row for each place");
  if (routes.n_rows == 0) return;
  if (product_.apply) return product_.apply(context, routes, x, y);
  for (size_t e = 0; e < experts_.size(); ++e) {
    const int64_t begin = routes.begin[e], n = routes.begin[e + 1] - begin;
    if (n > 0) experts_[e].Apply(context, Rows(x, begin, n), Rows(y, begin, n));
  }
}

}  // namespace ovq::kernels
