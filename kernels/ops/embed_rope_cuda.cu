// PrepareHeads, in place over x [n_rows, n_heads, d]:
//   u = norm(x) by HeadNorm;  x[i], x[j] = u[i] c - u[j] s, u[j] c + u[i] s for the pairs (i, j) of
//   the RopeSpec, c = amplitude cos a, s = amplitude sin a, a = position w
// GrowQueries: x[row] = (1 + scale ln(1 + floor((position + 1) / floor_tokens))) x[row]
// AddSinusoids: y[row] += scale [sin a | cos a], the angles of a table of halves
// Embed: y[row] = table[ids[row]], table [vocab, width], y [n_rows, width].
#include "kernels/common/cuda/cuda_device.h"
#include "kernels/ops/cuda/heads.cuh"
#include "kernels/ops/cuda/rows.cuh"
#include "kernels/ops/ops_device.h"

namespace ovq::kernels::cuda {
namespace {

constexpr int kEmbedThreads = 256;
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
  AllowNextKernel();
  WaitForKernelsBefore();
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

constexpr int kGrowThreads = 128;
// One thread block per row. Positions are read before the kernels before have ended (HeadsKernel).
__global__ void __launch_bounds__(kGrowThreads)
    GrowQueriesKernel(HeadRows queries, QueryGrowth growth, const int64_t* positions, bool rounds) {
  AllowNextKernel();
  const auto n_floors = static_cast<double>(growth.n_floors(positions[blockIdx.x]));
  const auto factor = static_cast<float>(1 + growth.scale * log1p(n_floors));
  WaitForKernelsBefore();
  float* x = queries.data + int64_t{blockIdx.x} * queries.row_stride;
  const int width = queries.n_heads * queries.head_dim;
  for (int i = static_cast<int>(threadIdx.x); i < width; i += kGrowThreads) {
    const float y = x[i] * factor;
    x[i] = rounds ? RoundedToBF16(y) : y;
  }
}

}  // namespace

void PrepareHeads(DeviceContext& context, const HeadPrep& prep) {
  if (prep.queries.n_rows > 0) LaunchHeads(context, prep, StoreNothing());
}

void GrowQueries(DeviceContext& context, const HeadRows& queries, const QueryGrowth& growth,
                 std::span<const int64_t> positions, bool round_to_bf16) {
  if (positions.empty()) return;
  LaunchEarly(context, GrowQueriesKernel, dim3(static_cast<unsigned>(positions.size())),
              dim3(kGrowThreads), 0, queries, growth, positions.data(), round_to_bf16);
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
  LaunchEarly(context, EmbedKernel, dim3(static_cast<unsigned>(ids.size())), dim3(kEmbedThreads), 0,
              table.as<void>(), table.dtype, ids.data(), y.shape[1], ToActivations(y));
}

}  // namespace ovq::kernels::cuda
