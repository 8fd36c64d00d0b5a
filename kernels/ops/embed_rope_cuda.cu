// PrepareHeads, in place over x [n_rows, n_heads, d]:
//   u = norm(x) by HeadNorm;  x[i], x[j] = u[i] cos a - u[j] sin a, u[j] cos a + u[i] sin a for the
//   pairs (i, j) of the RopeSpec, a = position w
// AddSinusoids: y[row] += scale [sin a | cos a], the angles of a table of halves
// Embed: y[row] = table[ids[row]], table [vocab, width], y [n_rows, width].
#include <algorithm>

#include "kernels/common/cuda/cuda_device.h"
#include "kernels/ops/cuda/rows.cuh"
#include "kernels/ops/ops_device.h"

namespace ovq::kernels::cuda {
namespace {

constexpr int kEmbedThreads = 256;
constexpr int kMaxHeadWarps = 8;
constexpr int kMaxHeadThreads = kMaxHeadWarps * kWarp;

struct HeadsTask {
  HeadPrep prep;
  RopePairs rope;
};

__device__ float RoundedToBF16(float x) { return __uint_as_float(PackBF16(x, 0) << 16); }

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

// One head in one warp. Lane l has the pairs l, l + 32, ... of all (head_dim + 1) / 2, so that no
// lane needs another's elements after the norm. Elements that RoPE does not rotate are paired by
// halves, too.
struct HeadPairs {
  const float* data;
  int head_dim;
  const RopePairs& rope;

  __device__ bool is_behind(int pair) const { return rope.step == 1 && pair >= rope.n; }
  __device__ int first(int pair) const {
    return is_behind(pair) ? rope.n + pair : pair * rope.step;
  }
  __device__ int second(int pair) const {
    return first(pair) + (is_behind(pair) ? (head_dim + 1) / 2 - rope.n : rope.distance);
  }
  __device__ bool has_second(int pair) const { return second(pair) < head_dim; }
  // Sum of (x - shift)^power over the head, power 1 or 2.
  __device__ float Sum(float shift, bool squares) const {
    float low = 0, high = 0;
    for (int p = static_cast<int>(threadIdx.x) % kWarp; p < (head_dim + 1) / 2; p += kWarp) {
      const float a = data[first(p)] - shift;
      const float b = has_second(p) ? data[second(p)] - shift : 0.0f;
      low = squares ? fmaf(a, a, low) : low + a;
      high = squares ? fmaf(b, b, high) : high + b;
    }
    return WarpSum(low + high);
  }
};

__device__ HeadScale ComputeHeadScale(const HeadPairs& head, const HeadPrep& prep, bool is_query,
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

// Called by one warp. cosine, sine [n_pairs]: read only with RoPE.
__device__ void PrepareHead(float* data, const HeadsTask& task, bool is_query, float beta,
                            SharedPtr<const float> cosine, SharedPtr<const float> sine) {
  const HeadPairs head = {data, task.prep.queries.head_dim, task.rope};
  const HeadScale scale = ComputeHeadScale(head, task.prep, is_query, beta);
  for (int p = static_cast<int>(threadIdx.x) % kWarp; p < (head.head_dim + 1) / 2; p += kWarp) {
    const int i = head.first(p), j = head.second(p);
    const bool pair = head.has_second(p);
    float a = scale.Apply(data[i], i);
    float b = pair ? scale.Apply(data[j], j) : 0.0f;
    if (p < task.rope.n) {
      const float c = cosine[p], s = sine[p];
      const float turned = a * c - b * s;
      b = b * c + a * s;
      a = turned;
    }
    data[i] = task.prep.round_to_bf16 ? RoundedToBF16(a) : a;
    if (pair) data[j] = task.prep.round_to_bf16 ? RoundedToBF16(b) : b;
  }
}

// One thread block per row; each warp processes one head at a time.
__global__ void __launch_bounds__(kMaxHeadThreads) HeadsKernel(const HeadsTask task) {
  const int64_t row = blockIdx.x;
  const HeadPrep& prep = task.prep;
  const int n_pairs = task.rope.n;
  const SharedPtr<float> cosine = DynamicShared<float>(0), sine = cosine + n_pairs;
  if (n_pairs > 0) {
    const auto position = static_cast<Phase>(prep.positions[row]);  // sign-extended
    for (int i = static_cast<int>(threadIdx.x); i < n_pairs; i += static_cast<int>(blockDim.x)) {
      double s, c;
      sincospi(HalfTurns(position * task.rope.frequencies[i]), &s, &c);
      const auto narrow = [&](double x) {
        const auto y = static_cast<float>(x);
        return task.rope.rounds_to_bf16 ? RoundedToBF16(y) : y;
      };
      cosine[i] = narrow(c);
      sine[i] = narrow(s);
    }
    __syncthreads();
  }
  const int n_warps = static_cast<int>(blockDim.x) / kWarp;
  const int n_queries = prep.queries.n_heads;
  for (int h = static_cast<int>(threadIdx.x) / kWarp; h < n_queries + prep.keys.n_heads;
       h += n_warps) {
    const bool query = h < n_queries;
    const int head = query ? h : h - n_queries;
    const HeadRows& heads = query ? prep.queries : prep.keys;
    const float beta = query && prep.beta != nullptr ? prep.beta[head] : 1.0f;
    PrepareHead(heads.data + row * heads.row_stride + int64_t{head} * prep.queries.head_dim, task,
                query, beta, cosine, sine);
  }
}

// FloatAt for the three types. The fields of a binary16, shifted to their places in a float, give
// the number times 2^-112, subnormal or not.
__device__ float Widened(const void* table, DType dtype, int64_t i) {
  if (dtype == DType::kF32) return static_cast<const float*>(table)[i];
  const uint32_t x = static_cast<const uint16_t*>(table)[i];
  if (dtype == DType::kBF16) return __uint_as_float(x << 16);
  const uint32_t sign = (x & 0x8000u) << 16, rest = x & 0x7fffu;
  const float finite = __uint_as_float(rest << 13) * 0x1p112f;
  const uint32_t bits = rest < 0x7c00u ? __float_as_uint(finite) : 0x7f800000u | rest << 13;
  return __uint_as_float(sign | bits);
}

__global__ void __launch_bounds__(kEmbedThreads)
    EmbedKernel(const void* table, DType dtype, const int32_t* ids, int64_t width, Activations y) {
  const int64_t row = blockIdx.x, from = ids[row] * width;
  for (int64_t i = threadIdx.x; i < width; i += kEmbedThreads) {
    const float x = Widened(table, dtype, from + i);
    if (y.f32 != nullptr) {
      y.f32[row * width + i] = x;
    } else {
      y.bf16[row * width + i].bits = static_cast<uint16_t>(PackBF16(x, 0));
    }
  }
}

// One thread block per row.
__global__ void __launch_bounds__(kEmbedThreads)
    SinusoidsKernel(const Phase* frequencies, int n, const int64_t* positions, float scale,
                    float* y) {
  const auto position = static_cast<Phase>(positions[blockIdx.x]);  // sign-extended
  float* to = y + int64_t{blockIdx.x} * 2 * n;
  for (int i = static_cast<int>(threadIdx.x); i < n; i += kEmbedThreads) {
    double sine, cosine;
    sincospi(HalfTurns(position * frequencies[i]), &sine, &cosine);
    to[i] += scale * static_cast<float>(sine);
    to[n + i] += scale * static_cast<float>(cosine);
  }
}

}  // namespace

void PrepareHeads(DeviceContext& context, const HeadPrep& prep) {
  const HeadRows& x = prep.queries;
  if (x.n_rows == 0) return;
  const int n_warps = std::min(x.n_heads + prep.keys.n_heads, kMaxHeadWarps);
  const HeadsTask task = {prep, prep.rope ? RopePairs(*prep.rope) : RopePairs()};
  Launch(context, HeadsKernel, dim3(static_cast<unsigned>(x.n_rows)), dim3(n_warps * kWarp),
         2 * static_cast<size_t>(task.rope.n) * sizeof(float), task);
}

void AddSinusoids(DeviceContext& context, const RopeTable& table,
                  std::span<const int64_t> positions, float scale, TensorView y) {
  if (positions.empty()) return;
  Launch(context, SinusoidsKernel, dim3(static_cast<unsigned>(positions.size())),
         dim3(kEmbedThreads), 0, table.frequencies(), table.n_pairs(), positions.data(), scale,
         y.as<float>());
}

void Embed(DeviceContext& context, TensorView table, std::span<const int32_t> ids, TensorView y) {
  if (ids.empty()) return;
  Launch(context, EmbedKernel, dim3(static_cast<unsigned>(ids.size())), dim3(kEmbedThreads), 0,
         table.as<void>(), table.dtype, ids.data(), y.shape[1], ToActivations(y));
}

}  // namespace ovq::kernels::cuda
