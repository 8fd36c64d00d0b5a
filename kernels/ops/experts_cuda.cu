// Route and SumExperts by the equations of experts.h. Which thread finds a place first decides the
// order of an expert's places, which no result depends on.
#include <algorithm>
#include <cmath>

#include "kernels/common/cuda/cuda_device.h"
#include "kernels/ops/cuda/rows.cuh"
#include "kernels/ops/experts.h"

namespace ovq::kernels::cuda {
namespace {

constexpr int kRouteWarps = 4;
constexpr int kPlaceThreads = 1024;
constexpr int kSumThreads = 256;

// A value and its index. A better one is larger, or equal and earlier.
struct Ranked {
  float value;
  int index;
};
__device__ bool IsBetter(const Ranked& a, const Ranked& b) {
  return a.value > b.value || (a.value == b.value && a.index < b.index);
}

// The next best of x [n] after `last`, by one warp; index n if there is none.
__device__ Ranked NextLargest(SharedPtr<const float> x, int n, const Ranked& last) {
  Ranked best = {-INFINITY, n};
  for (int i = static_cast<int>(threadIdx.x) % kWarp; i < n; i += kWarp) {
    const float value = x[i];
    const Ranked here = {value, i};
    if (IsBetter(last, here) && IsBetter(here, best)) best = here;
  }
  for (int distance = kWarp / 2; distance > 0; distance /= 2) {
    const Ranked other = {__shfl_xor_sync(kAllLanes, best.value, distance),
                          __shfl_xor_sync(kAllLanes, best.index, distance)};
    if (IsBetter(other, best)) best = other;
  }
  return best;
}

constexpr Ranked kBeforeAll = {INFINITY, -1};

// p of a row, by one warp.
__device__ void Score(RouterScore score, const float* z, int n, SharedPtr<float> p) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  if (score == RouterScore::kSigmoid) {
    for (int e = lane; e < n; e += kWarp) p[e] = Sigmoid(z[e]);
    return;
  }
  float highest = -INFINITY, sum = 0;
  for (int e = lane; e < n; e += kWarp) highest = fmaxf(highest, z[e]);
  highest = WarpFold(highest, [](float a, float b) { return fmaxf(a, b); });
  for (int e = lane; e < n; e += kWarp) {
    const float exponential = expf(z[e] - highest);
    p[e] = exponential;
    sum += exponential;
  }
  sum = WarpSum(sum);
  for (int e = lane; e < n; e += kWarp) {
    const float exponential = p[e];
    p[e] = exponential / sum;
  }
}

// Sets c to router.dropped outside of the best groups, by one warp. scores [2 n_groups].
__device__ void DropGroups(const RouterSpec& router, SharedPtr<float> c, SharedPtr<float> scores) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp, n = router.n_groups;
  const int size = router.n_experts / n;
  for (int g = lane; g < n; g += kWarp) {
    float first = -INFINITY, second = -INFINITY;
    for (int i = g * size; i < (g + 1) * size; ++i) {
      const float value = c[i];
      second = fmaxf(second, fminf(first, value));
      first = fmaxf(first, value);
    }
    scores[g] = size > 1 ? first + second : first;
    scores[n + g] = 0.0f;
  }
  __syncwarp();
  Ranked last = kBeforeAll;
  for (int j = 0; j < router.n_kept_groups; ++j) {
    last = NextLargest(scores, n, last);
    if (lane == 0) scores[n + last.index] = 1.0f;
    __syncwarp();
  }
  for (int e = lane; e < router.n_experts; e += kWarp) {
    const float kept = scores[n + e / size];
    if (kept == 0) c[e] = router.dropped;
  }
  __syncwarp();
}

// A warp for each row, with [2 E + 2 n_groups] floats of shared memory.
__global__ void __launch_bounds__(kRouteWarps* kWarp)
    ChooseKernel(const RouterSpec router, const float* bias, const float* logits, int64_t stride,
                 int64_t n_rows, int32_t* chosen, float* weights) {
  AllowNextKernel();
  WaitForKernelsBefore();
  const int lane = static_cast<int>(threadIdx.x) % kWarp, n = router.n_experts;
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const int64_t row = int64_t{blockIdx.x} * kRouteWarps + warp;
  if (row >= n_rows) return;
  const SharedPtr<float> p = DynamicShared<float>(0) + warp * 2 * (n + router.n_groups);
  const SharedPtr<float> c = p + n;
  Score(router.score, logits + row * stride, n, p);
  for (int e = lane; e < n; e += kWarp) {
    const float of_expert = p[e], with_bias = bias == nullptr ? of_expert : of_expert + bias[e];
    c[e] = std::isnan(with_bias) ? -INFINITY : with_bias;
  }
  __syncwarp();
  if (router.n_kept_groups < router.n_groups) DropGroups(router, c, c + n);
  Ranked last = kBeforeAll;
  float sum = 0;
  const int k = router.n_chosen;
  for (int j = 0; j < k; ++j) {
    last = NextLargest(c, n, last);
    const float weight = p[last.index];
    sum += weight;
    if (lane == 0) chosen[row * k + j] = last.index, weights[row * k + j] = weight;
  }
  if (lane != 0) return;
  for (int64_t pair = row * k; pair < (row + 1) * k; ++pair) {
    const float weight = router.normalizes ? weights[pair] / (sum + 1e-20f) : weights[pair];
    weights[pair] = weight * router.scale;
  }
}

// One thread block. Shared memory: counts [E], then first places [E + 1], then first tiles [E + 1].
__global__ void __launch_bounds__(kPlaceThreads)
    PlaceKernel(const Routes routes, const int32_t* chosen) {
  AllowNextKernel();
  WaitForKernelsBefore();
  const int thread = static_cast<int>(threadIdx.x), n_threads = static_cast<int>(blockDim.x);
  const int n = routes.n_experts, n_pairs = static_cast<int>(routes.n_rows * routes.n_chosen);
  const int tile_rows = routes.tile_rows;
  const SharedPtr<int> counts = DynamicShared<int>(0), begin = counts + n, tiles = begin + n + 1;
  for (int e = thread; e < n; e += n_threads) counts[e] = 0;
  __syncthreads();
  for (int pair = thread; pair < n_pairs; pair += n_threads) atomicAdd(counts + chosen[pair], 1);
  __syncthreads();
  if (thread < kWarp) {  // sums of 32 experts after another
    int places = 0, used = 0;
    for (int first = 0; first < n; first += kWarp) {
      const int e = first + thread;
      int count = 0;
      if (e < n) count = counts[e];
      int places_here = count, tiles_here = (count + tile_rows - 1) / tile_rows;
      const int own_tiles = tiles_here;
      for (int distance = 1; distance < kWarp; distance *= 2) {
        const int more_places = __shfl_up_sync(kAllLanes, places_here, distance);
        const int more_tiles = __shfl_up_sync(kAllLanes, tiles_here, distance);
        if (thread >= distance) places_here += more_places, tiles_here += more_tiles;
      }
      if (e < n) {
        begin[e] = places + places_here - count;
        tiles[e] = used + tiles_here - own_tiles;
      }
      places += __shfl_sync(kAllLanes, places_here, kWarp - 1);
      used += __shfl_sync(kAllLanes, tiles_here, kWarp - 1);
    }
    if (thread == 0) begin[n] = places, tiles[n] = used;
  }
  __syncthreads();
  for (int e = thread; e <= n; e += n_threads) {
    const int first = begin[e];
    routes.begin[e] = first;
    if (e == n) continue;
    const int end = begin[e + 1], first_tile = tiles[e];
    counts[e] = first;  // from here on its next place
    for (int at = first, tile = first_tile; at < end; at += tile_rows, ++tile) {
      routes.tiles[tile] = {e, at, min(tile_rows, end - at)};
    }
  }
  const int n_used = tiles[n];
  for (int tile = n_used + thread; tile < routes.n_tiles; tile += n_threads) {
    routes.tiles[tile] = {0, 0, 0};
  }
  __syncthreads();
  for (int pair = thread; pair < n_pairs; pair += n_threads) {
    const int place = atomicAdd(counts + chosen[pair], 1);
    routes.places[pair] = place;
    routes.rows[place] = pair / routes.n_chosen;
  }
}

// Grid (rows, parts of a row); a thread has four adjacent elements.
__global__ void __launch_bounds__(kSumThreads)
    SumKernel(const Routes routes, const ExpertSum task, bool aligned) {
  AllowNextKernel();
  WaitForKernelsBefore();
  const int64_t row = blockIdx.x, n = task.h.shape[1];
  const int64_t i = (int64_t{blockIdx.y} * blockDim.x + threadIdx.x) * 4;
  if (i >= n) return;
  float4 sum = make_float4(0, 0, 0, 0);
  const auto add = [&](float weight, const float* of_row) {
    const float4 y = Load4(of_row, i, n, aligned, 0);
    sum = make_float4(fmaf(weight, y.x, sum.x), fmaf(weight, y.y, sum.y), fmaf(weight, y.z, sum.z),
                      fmaf(weight, y.w, sum.w));
  };
  const float* y = static_cast<const float*>(task.y.data);
  for (int64_t pair = row * routes.n_chosen; pair < (row + 1) * routes.n_chosen; ++pair) {
    add(routes.weights[pair], y + routes.places[pair] * n);
  }
  if (task.shared != nullptr) {
    add(Sigmoid(task.gate[row * task.gate_stride]), task.shared + row * n);
  }
  float* h = static_cast<float*>(task.h.data) + row * n;
  if (task.accumulate) {
    const float4 before = Load4(h, i, n, aligned, 0);
    sum = make_float4(before.x + sum.x, before.y + sum.y, before.z + sum.z, before.w + sum.w);
  }
  Store4(h, i, n, aligned, sum);
}

}  // namespace

void Route(DeviceContext& context, const RouterSpec& router, const float* bias, TensorView logits,
           const Routes& routes) {
  ScratchScope scope(context);
  auto* chosen = scope.Allocate<int32_t>(static_cast<size_t>(routes.n_places()));
  const auto blocks = static_cast<unsigned>((routes.n_rows + kRouteWarps - 1) / kRouteWarps);
  const auto n_shared = static_cast<size_t>(2 * (router.n_experts + router.n_groups));
  LaunchEarly(context, ChooseKernel, dim3(blocks), dim3(kRouteWarps * kWarp),
              kRouteWarps * n_shared * sizeof(float), router, bias, logits.as<float>(),
              logits.shape[1], routes.n_rows, chosen, routes.weights);
  const int64_t warps = (routes.n_places() + kWarp - 1) / kWarp;
  const auto threads = static_cast<unsigned>(std::min<int64_t>(warps * kWarp, kPlaceThreads));
  LaunchEarly(context, PlaceKernel, dim3(1), dim3(threads),
              (3 * static_cast<size_t>(router.n_experts) + 2) * sizeof(int), routes, chosen);
}

void SumExperts(DeviceContext& context, const Routes& routes, const ExpertSum& sum) {
  const int64_t width = sum.h.shape[1];
  const int64_t quads = (width + 3) / 4, parts = (quads + kSumThreads - 1) / kSumThreads;
  const int64_t warps = (quads + parts * kWarp - 1) / (parts * kWarp);
  const bool aligned = Aligned(sum.y.data, width, sizeof(float)) &&
                       Aligned(sum.h.data, width, sizeof(float)) &&
                       Aligned(sum.shared, width, sizeof(float));
  LaunchEarly(context, SumKernel,
              dim3(static_cast<unsigned>(routes.n_rows), static_cast<unsigned>(parts)),
              dim3(static_cast<unsigned>(warps * kWarp)), 0, routes, sum, aligned);
}

}  // namespace ovq::kernels::cuda
