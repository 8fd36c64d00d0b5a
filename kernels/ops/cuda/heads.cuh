// Heads of queries, keys and values, a warp each: the norm and RoPE of PrepareHeads (ops.h), and
// what a Store does with keys and values that are ready. A lane has the pairs l, l + 32, ... of a
// head's (head_dim + 1) / 2, so that it needs no other lane's elements after the norm. Elements
// that RoPE does not turn are paired by halves, too.
#pragma once

#include <algorithm>

#include "kernels/common/cuda/cuda_device.h"
#include "kernels/ops/cuda/rows.cuh"
#include "kernels/ops/ops_device.h"

namespace ovq::kernels::cuda {

inline constexpr int kHeadWarps = 4;        // of a thread block
inline constexpr int kMostHeadsOfWarp = 4;  // whose sines and cosines are computed once
inline constexpr int kFullWarps = 32;       // of a multiprocessor that is busy

// Without a Store. Another one gives the values, which have as many rows; finds the place of a row;
// and stores heads there.
struct StoreNothing {
  struct Place {};
  HeadRows values = {};
  __device__ Place Find(int64_t) const { return {}; }
  template <class Head>
  __device__ void StoreKey(const Place&, int64_t, int, const Head&) const {}
  template <class Head>
  __device__ void StoreValue(const Place&, int64_t, int, const Head&) const {}
};

template <class Store>
struct HeadsTask {
  HeadPrep prep;
  RopePairs rope;
  int row_warps;  // warps that share the heads of a row
  Store store;
};

__device__ inline float RoundedToBF16(float x) { return __uint_as_float(PackBF16(x, 0) << 16); }

// Cosine and sine of a pair's angle.
__device__ inline float2 Turn(const RopePairs& rope, int64_t position, int pair) {
  double s, c;
  // sign-extended
  sincospi(HalfTurns(static_cast<Phase>(position) * rope.frequencies[pair]), &s, &c);
  const auto narrow = [&](double x) {
    const auto y = static_cast<float>(x);
    return rope.rounds_to_bf16 ? RoundedToBF16(y) : y;
  };
  return make_float2(narrow(c), narrow(s));
}

// kPairs: of a lane, in registers. 0: any number, read from memory each time.
template <int kPairs>
struct HeadTurns {
  const RopePairs& rope;
  int64_t position = 0;
  float2 turns[kPairs > 0 ? kPairs : 1] = {};

  __device__ HeadTurns(const RopePairs& rope, const int64_t* positions, int64_t row) : rope(rope) {
    if (rope.n == 0) return;
    position = positions[row];
#pragma unroll
    for (int i = 0; i < kPairs; ++i) {
      const int pair = static_cast<int>(threadIdx.x) % kWarp + i * kWarp;
      if (pair < rope.n) turns[i] = Turn(rope, position, pair);
    }
  }
  __device__ float2 At(int i, int pair) const {
    if constexpr (kPairs > 0) return turns[i];
    return Turn(rope, position, pair);
  }
};

// One head in one warp.
template <int kPairs>
struct WarpHead {
  const float* data;
  int head_dim;
  const RopePairs* rope;
  int n_turned;  // pairs that RoPE turns; 0 for values
  float low[kPairs > 0 ? kPairs : 1] = {}, high[kPairs > 0 ? kPairs : 1] = {};

  __device__ bool is_behind(int pair) const { return rope->step == 1 && pair >= n_turned; }
  __device__ int first(int pair) const {
    return is_behind(pair) ? n_turned + pair : pair * rope->step;
  }
  __device__ int second(int pair) const {
    return first(pair) + (is_behind(pair) ? (head_dim + 1) / 2 - n_turned : rope->distance);
  }
  __device__ bool has_second(int pair) const { return second(pair) < head_dim; }

  __device__ void Load() {
#pragma unroll
    for (int i = 0; i < kPairs; ++i) {
      const int pair = static_cast<int>(threadIdx.x) % kWarp + i * kWarp;
      const bool exists = pair < (head_dim + 1) / 2;
      low[i] = exists ? data[first(pair)] : 0;
      high[i] = exists && has_second(pair) ? data[second(pair)] : 0;
    }
  }
  // Calls fn(i, pair, a, b) for this lane's pairs; b is 0 without a second element. A function that
  // changes the elements has to store them, as they may be read from memory the next time.
  template <class Fn>
  __device__ void Each(Fn fn) {
    const int lane = static_cast<int>(threadIdx.x) % kWarp, n = (head_dim + 1) / 2;
    if constexpr (kPairs > 0) {
#pragma unroll
      for (int i = 0; i < kPairs; ++i) {
        if (lane + i * kWarp < n) fn(i, lane + i * kWarp, low[i], high[i]);
      }
    } else {
      for (int pair = lane; pair < n; pair += kWarp) {
        float a = data[first(pair)], b = has_second(pair) ? data[second(pair)] : 0.0f;
        fn(0, pair, a, b);
      }
    }
  }
  // Sum of (x - shift)^power over the head, power 1 or 2.
  __device__ float Sum(float shift, bool squares) {
    float of_first = 0, of_second = 0;
    Each([&](int, int pair, float& x, float& y) {
      const float a = x - shift, b = has_second(pair) ? y - shift : 0.0f;
      of_first = squares ? fmaf(a, a, of_first) : of_first + a;
      of_second = squares ? fmaf(b, b, of_second) : of_second + b;
    });
    return WarpSum(of_first + of_second);
  }
};

// A head's norm as x -> (x - mean) * factor * weight + bias.
struct HeadScale {
  float mean, factor;
  const float *weight, *bias;  // [head_dim] or null; bias is null if weight is

  __device__ float Apply(float x, int i) const {
    const float unit = (x - mean) * factor;
    if (bias != nullptr) return fmaf(unit, weight[i], bias[i]);
    return weight != nullptr ? unit * weight[i] : unit;
  }
};

template <int kPairs>
__device__ HeadScale ComputeHeadScale(WarpHead<kPairs>& head, const HeadPrep& prep, bool is_query,
                                      float beta) {
  HeadScale scale = {0, beta, nullptr, nullptr};
  const auto n = static_cast<float>(head.head_dim);
  const float* weights = is_query ? prep.query_norm : prep.key_norm;
  if (prep.norm == HeadNorm::kUnit) scale.factor = beta / sqrtf(head.Sum(0, true) + 1e-6f);
  if (prep.norm == HeadNorm::kL2) {
    scale.factor = beta / (sqrtf(head.Sum(0, true)) + kHeadNormEps);
  }
  if (prep.norm == HeadNorm::kLayer) {
    scale.mean = head.Sum(0, false) / n;
    scale.factor = 1.0f / sqrtf(head.Sum(scale.mean, true) / n + kHeadNormEps);
    scale.weight = weights;
    scale.bias = weights + head.head_dim;
  }
  if (prep.norm == HeadNorm::kRms) {
    scale.factor = 1.0f / sqrtf(head.Sum(0, true) / n + prep.eps);
    scale.weight = weights;
  }
  return scale;
}

// Norm, RoPE and rounding; `to` is the head's own place.
template <int kPairs>
__device__ void PrepareHead(WarpHead<kPairs>& head, const HeadPrep& prep, bool is_query, float beta,
                            const HeadTurns<kPairs>& turns, float* to) {
  const HeadScale scale = ComputeHeadScale(head, prep, is_query, beta);
  head.Each([&](int i, int pair, float& a, float& b) {
    const int first = head.first(pair), second = head.second(pair);
    const bool has_second = head.has_second(pair);
    a = scale.Apply(a, first);
    if (has_second) b = scale.Apply(b, second);
    if (pair < head.n_turned) {
      const float2 turn = turns.At(i, pair);
      const float turned = a * turn.x - b * turn.y;
      b = b * turn.x + a * turn.y;
      a = turned;
    }
    if (prep.round_to_bf16) {
      a = RoundedToBF16(a);
      b = RoundedToBF16(b);
    }
    to[first] = a;
    if (has_second) to[second] = b;
  });
}

// Head `index` of a row: the queries', then the keys', then the values'.
struct HeadOfRow {
  enum Kind { kQuery, kKey, kValue } kind;
  int head;
  float* data;
  int head_dim;

  __device__ HeadOfRow(const HeadPrep& prep, const HeadRows& values, int64_t row, int index) {
    const int n_queries = prep.queries.n_heads, n_keys = prep.keys.n_heads;
    kind = index < n_queries ? kQuery : index < n_queries + n_keys ? kKey : kValue;
    head = index - (kind == kQuery ? 0 : kind == kKey ? n_queries : n_queries + n_keys);
    const HeadRows& heads = kind == kQuery ? prep.queries : kind == kKey ? prep.keys : values;
    head_dim = heads.head_dim;
    data = heads.data + row * heads.row_stride + int64_t{head} * head_dim;
  }
};

// A warp has every row_warps-th head of a row and loads the next one while it computes. Positions
// are read before the kernels before have ended: a batch's are copied to the device before its
// first kernel begins, and no kernel of an earlier batch is left then.
template <int kPairs, class Store>
__global__ void __launch_bounds__(kHeadWarps* kWarp)
    HeadsKernel(const __grid_constant__ HeadsTask<Store> task) {
  AllowNextKernel();
  const HeadPrep& prep = task.prep;
  const Store& store = task.store;
  const int64_t warp = int64_t{blockIdx.x} * kHeadWarps + threadIdx.x / kWarp;
  const int64_t row = warp / task.row_warps;
  if (row >= prep.queries.n_rows) return WaitForKernelsBefore();
  const HeadTurns<kPairs> turns(task.rope, prep.positions.data(), row);
  const typename Store::Place place = store.Find(row);
  WaitForKernelsBefore();
  const int n_heads = prep.queries.n_heads + prep.keys.n_heads + store.values.n_heads;
  const auto load = [&](int index) {
    const HeadOfRow at(prep, store.values, row, index);
    WarpHead<kPairs> head = {at.data, at.head_dim, &task.rope,
                             at.kind == HeadOfRow::kValue ? 0 : task.rope.n};
    head.Load();
    return head;
  };
  int index = static_cast<int>(warp % task.row_warps);
  WarpHead<kPairs> next = load(index);
  for (; index < n_heads; index += task.row_warps) {
    WarpHead<kPairs> head = next;
    if (index + task.row_warps < n_heads) next = load(index + task.row_warps);
    const HeadOfRow at(prep, store.values, row, index);
    if (at.kind == HeadOfRow::kValue) {
      store.StoreValue(place, row, at.head, head);
      continue;
    }
    const bool is_query = at.kind == HeadOfRow::kQuery;
    const float beta = is_query && prep.beta != nullptr ? prep.beta[at.head] : 1.0f;
    PrepareHead(head, prep, is_query, beta, turns, at.data);
    if (!is_query) store.StoreKey(place, row, at.head, head);
  }
}

template <class Store>
void LaunchHeads(DeviceContext& context, const HeadPrep& prep, const Store& store) {
  const int64_t n_rows = prep.queries.n_rows;
  const int n_heads = prep.queries.n_heads + prep.keys.n_heads + store.values.n_heads;
  const int64_t busy = int64_t{context.cuda().n_multiprocessors} * kFullWarps;
  const auto each = std::clamp<int64_t>(n_rows * n_heads / busy, 1, kMostHeadsOfWarp);
  const auto row_warps = static_cast<int>((n_heads + each - 1) / each);
  const auto grid = static_cast<unsigned>((n_rows * row_warps + kHeadWarps - 1) / kHeadWarps);
  const int most_pairs = (std::max(prep.queries.head_dim, store.values.head_dim) + 1) / 2;
  const auto kernel = most_pairs <= 2 * kWarp   ? HeadsKernel<2, Store>
                      : most_pairs <= 4 * kWarp ? HeadsKernel<4, Store>
                                                : HeadsKernel<0, Store>;
  LaunchEarly(
      context, kernel, grid, kHeadWarps * kWarp, 0,
      HeadsTask<Store>{prep, prep.rope ? RopePairs(*prep.rope) : RopePairs(), row_warps, store});
}

}  // namespace ovq::kernels::cuda
