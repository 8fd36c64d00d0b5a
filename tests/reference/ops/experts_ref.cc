// Route and SumExperts by the equations of experts.h, in double precision.
#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "kernels/ops/experts.h"
#include "tests/reference/reference_of.h"

namespace ovq::kernels::ref {
namespace {

double Sigmoid(double z) { return 1 / (1 + std::exp(-z)); }

// The indices of x in descending order, of equal ones the lowest first.
std::vector<int> Descending(const std::vector<double>& x) {
  std::vector<int> order(x.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return x[a] > x[b]; });
  return order;
}

std::vector<double> Scores(const RouterSpec& router, const float* z) {
  std::vector<double> p;
  const double highest = *std::max_element(z, z + router.n_experts);
  for (int e = 0; e < router.n_experts; ++e) {
    p.push_back(router.score == RouterScore::kSigmoid ? Sigmoid(z[e])
                                                      : std::exp(double{z[e]} - highest));
  }
  if (router.score == RouterScore::kSigmoid) return p;
  const double sum = std::accumulate(p.begin(), p.end(), 0.0);
  for (double& of_expert : p) of_expert /= sum;
  return p;
}

}  // namespace

void Route(DeviceContext&, const RouterSpec& router, const float* bias, TensorView logits,
           const Routes& routes) {
  std::vector<int32_t> chosen;
  for (int64_t row = 0; row < routes.n_rows; ++row) {
    const std::vector<double> p = Scores(router, logits.as<float>() + row * logits.shape[1]);
    std::vector<double> c = p;
    for (int e = 0; e < router.n_experts && bias != nullptr; ++e) c[e] += bias[e];
    const int size = router.n_experts / router.n_groups;
    std::vector<double> scores;
    for (int g = 0; g < router.n_groups; ++g) {
      std::vector<double> group(c.begin() + g * size, c.begin() + (g + 1) * size);
      std::sort(group.rbegin(), group.rend());
      scores.push_back(size > 1 ? group[0] + group[1] : group[0]);
    }
    const std::vector<int> groups = Descending(scores);
    for (int j = router.n_kept_groups; j < router.n_groups; ++j) {
      std::fill_n(c.begin() + groups[j] * size, size, double{router.dropped});
    }
    const std::vector<int> order = Descending(c);
    double sum = 0;
    for (int j = 0; j < router.n_chosen; ++j) sum += p[order[j]];
    for (int j = 0; j < router.n_chosen; ++j) {
      const double w = p[order[j]] / (router.normalizes ? sum + 1e-20 : 1);
      chosen.push_back(order[j]);
      routes.weights[row * router.n_chosen + j] = static_cast<float>(w * router.scale);
    }
  }
  PlaceRows(chosen, routes);
}

void SumExperts(DeviceContext&, const Routes& routes, const ExpertSum& task) {
  const int64_t width = task.h.shape[1];
  for (int64_t row = 0; row < routes.n_rows; ++row) {
    for (int64_t i = 0; i < width; ++i) {
      float& h = task.h.as<float>()[row * width + i];
      double sum = task.accumulate ? h : 0;
      for (int64_t pair = row * routes.n_chosen; pair < (row + 1) * routes.n_chosen; ++pair) {
        sum += double{routes.weights[pair]} * task.y.as<float>()[routes.places[pair] * width + i];
      }
      if (task.shared != nullptr) {
        sum += Sigmoid(task.gate[row * task.gate_stride]) * task.shared[row * width + i];
      }
      h = static_cast<float>(sum);
    }
  }
}

const ReferenceOf<cpu::Route> kRoute = Route;
const ReferenceOf<cpu::SumExperts> kSumExperts = SumExperts;

}  // namespace ovq::kernels::ref
