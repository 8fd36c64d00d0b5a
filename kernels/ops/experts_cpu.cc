// Route and SumExperts by the equations of experts.h, in float32. Every sum is one chain in the
// order of its indices.
#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "kernels/ops/experts.h"
#include "kernels/ops/parallel_rows.h"

namespace ovq::kernels::cpu {
namespace {

constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();

float Sigmoid(float z) {
  const float e = std::exp(-std::abs(z));
  return (z < 0 ? e : 1) / (1 + e);
}

// p of one row.
void Score(RouterScore score, const float* z, int n, float* p) {
  if (score == RouterScore::kSigmoid) {
    std::transform(z, z + n, p, Sigmoid);
    return;
  }
  const float highest = *std::max_element(z, z + n);
  float sum = 0;
  for (int e = 0; e < n; ++e) sum += p[e] = std::exp(z[e] - highest);
  for (int e = 0; e < n; ++e) p[e] /= sum;
}

// Calls use(j, index) for the k largest of x [n] in descending order, of equal ones the lowest
// index first.
template <class UseFn>
void ForLargest(const float* x, int n, int k, UseFn&& use) {
  float last = std::numeric_limits<float>::infinity();
  int last_at = -1;
  for (int j = 0; j < k; ++j) {
    int best = -1;
    for (int i = 0; i < n; ++i) {
      const bool is_left = x[i] < last || (x[i] == last && i > last_at);
      if (is_left && (best < 0 || x[i] > x[best])) best = i;
    }
    last = x[best], last_at = best;
    use(j, best);
  }
}

// Sets c to `dropped` outside of the best groups.
void DropGroups(const RouterSpec& router, float* c) {
  const int size = router.n_experts / router.n_groups;
  std::vector<float> scores(static_cast<size_t>(router.n_groups), 0);
  for (int g = 0; g < router.n_groups; ++g) {
    ForLargest(c + g * size, size, std::min(size, 2),
               [&](int, int i) { scores[g] += c[g * size + i]; });
  }
  std::vector<bool> kept(scores.size(), false);
  ForLargest(scores.data(), router.n_groups, router.n_kept_groups,
             [&](int, int g) { kept[g] = true; });
  for (int e = 0; e < router.n_experts; ++e) {
    if (!kept[e / size]) c[e] = router.dropped;
  }
}

void ChooseExperts(const RouterSpec& router, const float* bias, const float* z, int32_t* chosen,
                   float* weights) {
  float p[kMaxExperts], c[kMaxExperts];
  Score(router.score, z, router.n_experts, p);
  for (int e = 0; e < router.n_experts; ++e) {
    const float with_bias = bias == nullptr ? p[e] : p[e] + bias[e];
    c[e] = std::isnan(with_bias) ? kMinusInfinity : with_bias;
  }
  if (router.n_kept_groups < router.n_groups) DropGroups(router, c);
  float sum = 0;
  ForLargest(c, router.n_experts, router.n_chosen, [&](int j, int e) {
    chosen[j] = e;
    sum += weights[j] = p[e];
  });
  for (int j = 0; j < router.n_chosen; ++j) {
    if (router.normalizes) weights[j] /= sum + 1e-20f;
    weights[j] *= router.scale;
  }
}

}  // namespace

void Route(DeviceContext& context, const RouterSpec& router, const float* bias, TensorView logits,
           const Routes& routes) {
  std::vector<int32_t> chosen(static_cast<size_t>(routes.n_places()));
  const int k = router.n_chosen;
  const int64_t work = int64_t{router.n_experts} * (k + 8);
  ParallelRows(context, routes.n_rows, work, [&](int64_t first, int64_t end) {
    for (int64_t row = first; row < end; ++row) {
      ChooseExperts(router, bias, logits.as<float>() + row * logits.shape[1],
                    chosen.data() + row * k, routes.weights + row * k);
    }
  });
  PlaceRows(chosen, routes);
}

void SumExperts(DeviceContext& context, const Routes& routes, const ExpertSum& task) {
  const int64_t width = task.h.shape[1];
  const int k = routes.n_chosen;
  ParallelRows(context, routes.n_rows, width * (k + 1), [&](int64_t first, int64_t end) {
    std::vector<float> sum(static_cast<size_t>(width));
    const auto add = [&](float weight, const float* y) {
      for (int64_t i = 0; i < width; ++i) sum[i] += weight * y[i];
    };
    for (int64_t row = first; row < end; ++row) {
      std::fill(sum.begin(), sum.end(), 0.0f);
      for (int64_t pair = row * k; pair < (row + 1) * k; ++pair) {
        add(routes.weights[pair], task.y.as<float>() + routes.places[pair] * width);
      }
      if (task.shared != nullptr) {
        add(Sigmoid(task.gate[row * task.gate_stride]), task.shared + row * width);
      }
      float* h = task.h.as<float>() + row * width;
      for (int64_t i = 0; i < width; ++i) h[i] = task.accumulate ? h[i] + sum[i] : sum[i];
    }
  });
}

}  // namespace ovq::kernels::cpu
