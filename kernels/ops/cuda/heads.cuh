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

inline constexpr int kHeadWarps = 4;   // of a thread block
inline constexpr int kFullWarps = 32;  // of a multiprocessor that is busy

// Without a Store. Another one gives the values, which have as many rows; finds the place of a row;
// and stores heads there.
struct StoreNothing {
  static constexpr bool kHasValues = false;
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

// Cosine and sine of a pair's angle, times the amplitude.
__device__ inline float2 Turn(const RopePairs& rope, int64_t position, int pair) {
  double s, c;
  // sign-extended
  sincospi(HalfTurns(static_cast<Phase>(position) * rope.frequencies[pair]), &s, &c);
  const auto narrow = [&](double x) {
    const auto y = static_cast<float>(rope.amplitude * x);
    return rope.rounds_to_bf16 ? RoundedToBF16(y) : y;
  };
  return make_float2(narrow(c), narrow(s));
}

// Turn as a call, which needs fewer registers between heads that are read from memory.
__device__ __noinline__ inline float2 CallTurn(const RopePairs& rope, int64_t position, int pair) {
  return Turn(rope, position, pair);
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
    return CallTurn(rope, position, pair);
  }
};

// One head in one warp. kWhole: it has 2 kWarp kPairs elements, and RoPE turns all of them by
// halves or none, so that a pair's places are known to the compiler.
template <int kPairs, bool kWhole>
struct WarpHead {
  const float* data;
  int head_dim;
  const RopePairs* rope;
  int n_turned;  // pairs that RoPE turns; 0 for values
  float low[kPairs > 0 ? kPairs : 1] = {}, high[kPairs > 0 ? kPairs : 1] = {};

  __device__ bool is_behind(int pair) const { return rope->step == 1 && pair >= n_turned; }
  __device__ int first(int pair) const {
    if constexpr (kWhole) return pair;
    return is_behind(pair) ? n_turned + pair : pair * rope->step;
  }
  __device__ int second(int pair) const {
    if constexpr (kWhole) return pair + kPairs * kWarp;
    return first(pair) + (is_behind(pair) ? (head_dim + 1) / 2 - n_turned : rope->distance);
  }
  __device__ bool exists(int pair) const { return kWhole || pair < (head_dim + 1) / 2; }
  __device__ bool has_second(int pair) const { return kWhole || second(pair) < head_dim; }

  __device__ void Load() {
#pragma unroll
    for (int i = 0; i < kPairs; ++i) {
      const int pair = static_cast<int>(threadIdx.x) % kWarp + i * kWarp;
      low[i] = exists(pair) ? data[first(pair)] : 0;
      high[i] = exists(pair) && has_second(pair) ? data[second(pair)] : 0;
    }
  }
  // Calls fn(i, pair, a, b) for this lane's pairs; b is 0 without a second element. A function that
  // changes the elements has to store them, as they may be read from memory the next time.
  template <class Fn>
  __device__ void Each(Fn fn) {
    const int lane = static_cast<int>(threadIdx.x) % kWarp;
    if constexpr (kPairs > 0) {
#pragma unroll
      for (int i = 0; i < kPairs; ++i) {
        if (exists(lane + i * kWarp)) fn(i, lane + i * kWarp, low[i], high[i]);
      }
    } else {
#pragma unroll 1
      for (int pair = lane; exists(pair); pair += kWarp) {
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

template <int kPairs, bool kWhole>
__device__ HeadScale ComputeHeadScale(WarpHead<kPairs, kWhole>& head, const HeadPrep& prep,
                                      bool is_query, float beta) {
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
template <int kPairs, bool kWhole>
__device__ void PrepareHead(WarpHead<kPairs, kWhole>& head, const HeadPrep& prep, bool is_query,
                            float beta, const HeadTurns<kPairs>& turns, float* to) {
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

// The heads of a row: the queries', then the keys', then the values'.
template <bool kHasValues>
struct HeadsOfRow {
  int n_queries, n_keys, n_values;
  int head_dim, value_head_dim;
  float *queries, *keys, *values;

  __device__ HeadsOfRow(const HeadPrep& prep, const HeadRows& of_values, int64_t row)
      : n_queries(prep.queries.n_heads),
        n_keys(prep.keys.n_heads),
        n_values(of_values.n_heads),
        head_dim(prep.queries.head_dim),
        value_head_dim(of_values.head_dim),
        queries(prep.queries.data + row * prep.queries.row_stride),
        keys(prep.keys.data + row * prep.keys.row_stride),
        values(of_values.data + row * of_values.row_stride) {}

  __device__ int n() const { return n_queries + n_keys + n_values; }
  __device__ bool is_query(int index) const { return index < n_queries; }
  __device__ bool is_value(int index) const { return kHasValues && index >= n_queries + n_keys; }
  // Among the heads of its kind.
  __device__ int place(int index) const {
    return index - (is_query(index) ? 0 : is_value(index) ? n_queries + n_keys : n_queries);
  }
  __device__ float* data(int index) const {
    float* first = is_query(index) ? queries : is_value(index) ? values : keys;
    return first + place(index) * (is_value(index) ? value_head_dim : head_dim);
  }
};

// A warp has every row_warps-th head of a row and loads the next one while it computes. Positions
// are read before the kernels before have ended: a batch's are copied to the device before its
// first kernel begins, and no kernel of an earlier batch is left then.
template <int kPairs, bool kWhole, class Store>
__global__ void __launch_bounds__(kHeadWarps* kWarp)
    HeadsKernel(const __grid_constant__ HeadsTask<Store> task) {
  AllowNextKernel();
  const HeadPrep& prep = task.prep;
  const Store& store = task.store;
  const int64_t warp = int64_t{blockIdx.x} * kHeadWarps + threadIdx.x / kWarp;
  const int64_t row = warp / task.row_warps;
  if (row >= prep.queries.n_rows) return WaitForKernelsBefore();
  const HeadTurns<kPairs> turns(task.rope, prep.positions.data(), row);
  const typename Store::Place place_of_row = store.Find(row);
  WaitForKernelsBefore();
  const HeadsOfRow<Store::kHasValues> heads(prep, store.values, row);
  const auto load = [&](int index) {
    const bool is_value = heads.is_value(index);
    WarpHead<kPairs, kWhole> head = {heads.data(index),
                                     is_value ? heads.value_head_dim : heads.head_dim, &task.rope,
                                     is_value ? 0 : task.rope.n};
    head.Load();
    return head;
  };
  int index = static_cast<int>(warp % task.row_warps);
  WarpHead<kPairs, kWhole> next = load(index);
  for (; index < heads.n(); index += task.row_warps) {
    WarpHead<kPairs, kWhole> head = next;
    if (index + task.row_warps < heads.n()) next = load(index + task.row_warps);
    const int place = heads.place(index);
    if (heads.is_value(index)) {
      store.StoreValue(place_of_row, row, place, head);
      continue;
    }
    const bool is_query = heads.is_query(index);
    const float beta = is_query && prep.beta != nullptr ? prep.beta[place] : 1.0f;
    PrepareHead(head, prep, is_query, beta, turns, heads.data(index));
    if (!is_query) store.StoreKey(place_of_row, row, place, head);
  }
}

template <class Store>
void LaunchHeads(DeviceContext& context, const HeadPrep& prep, const Store& store) {
  const int64_t n_rows = prep.queries.n_rows;
  const int n_heads = prep.queries.n_heads + prep.keys.n_heads + store.values.n_heads;
  const int64_t busy = int64_t{context.cuda().n_multiprocessors} * kFullWarps;
  const auto each = std::clamp<int64_t>(n_rows * n_heads / busy, 1, n_heads);
  const auto row_warps = static_cast<int>((n_heads + each - 1) / each);
  const auto grid = static_cast<unsigned>((n_rows * row_warps + kHeadWarps - 1) / kHeadWarps);
  const RopePairs rope = prep.rope ? RopePairs(*prep.rope) : RopePairs();
  const int d = prep.queries.head_dim, dv = store.values.n_heads > 0 ? store.values.head_dim : d;
  const int most_pairs = (std::max(d, dv) + 1) / 2;
  const bool whole = d == dv && rope.step == 1 && (rope.n == 0 || 2 * rope.n == d);
  const auto kernel = whole && d == 2 * kWarp   ? HeadsKernel<1, true, Store>
                      : whole && d == 4 * kWarp ? HeadsKernel<2, true, Store>
                      : most_pairs <= 2 * kWarp ? HeadsKernel<2, false, Store>
                      : most_pairs <= 4 * kWarp ? HeadsKernel<4, false, Store>
                                                : HeadsKernel<0, false, Store>;
  LaunchEarly(context, kernel, grid, kHeadWarps * kWarp, 0,
              HeadsTask<Store>{prep, rope, row_warps, store});
}

}  // namespace ovq::kernels::cuda
