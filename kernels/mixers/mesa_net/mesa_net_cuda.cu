// MesaNet on CUDA, by the equations of mesa_net_cpu.cc. A thread block handles a head of a
// sequence. A token multiplies with A = h_kk cg_steps times, so each thread keeps kRows rows of one
// column of A in registers over all tokens of the batch. Every warp repeats the work between two
// products for itself, so that a product needs one barrier.
#include "kernels/common/cuda/cuda_device.h"
#include "kernels/mixers/common/cuda/sequence_parts.h"
#include "kernels/mixers/mesa_net/mesa_net.h"
#include "kernels/ops/cuda/rows.cuh"

namespace ovq::kernels {
namespace cuda {
namespace {

constexpr int kGroups = 4;  // groups of rows, and threads for each column

template <int kRows>
class MesaHead {
 public:
  static constexpr int kWidth = kGroups * kRows;  // largest head_dim
  static constexpr int kPerLane = (kWidth + kWarp - 1) / kWarp;
  static constexpr uint32_t SharedBytes(int64_t stride) {
    const int64_t warps = stride * kGroups / kWarp;
    return static_cast<uint32_t>((2 * warps * kWidth + 2 * kGroups * stride) * sizeof(float));
  }

  __device__ MesaHead(const MesaArgs& args, std::byte* session, int head)
      : args_(args),
        head_(head),
        n_(args.config.head_dim),
        stride_(static_cast<int>(args.config.stride())),
        column_(static_cast<int>(threadIdx.x) % stride_),
        group_(static_cast<int>(threadIdx.x) / stride_),
        lane_(static_cast<int>(threadIdx.x) % kWarp),
        direction_(DynamicShared<float>(0) + threadIdx.x / kWarp * 2 * kWidth),
        key_(direction_ + kWidth),
        partial_(DynamicShared<float>(0) + blockDim.x / kWarp * 2 * kWidth),
        h_kk_at_(args.h_kk.At<float>(session, head) + ThreadOffset()),
        h_kv_at_(args.h_kv.At<float>(session, head) + ThreadOffset()) {
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      h_kk_[r] = IsRow(r) ? h_kk_at_[r * stride_] : 0.0f;
    }
    LoadVector(args.lambda + int64_t{head} * stride_, lambda_);
  }

  __device__ void AdvanceToken(int64_t token) {
    const int64_t gate = token * args_.config.n_heads + head_, first = int64_t{head_} * n_;
    const float beta = args_.beta[gate], gamma = args_.gamma[gate];
    UpdateKeys(args_.k + token * args_.qk_stride + first, beta, gamma);
    float u[kPerLane] = {}, y[kPerLane];
    Solve(args_.q + token * args_.qk_stride + first, u);
    BroadcastVector(u, direction_);
    UpdateAndRead(args_.v + token * args_.v_stride + first, beta, gamma, y);
    if (threadIdx.x >= kWarp) return;
#pragma unroll
    for (int e = 0; e < kPerLane; ++e) {
      const int c = Element(e);
      if (c < n_) args_.y[token * args_.config.width() + first + c] = y[e];
    }
  }

  __device__ void Store() const {
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      if (IsRow(r)) h_kk_at_[r * stride_] = h_kk_[r];
    }
  }

 private:
  // Offset of the thread's first element, of its column and its rows.
  __device__ int ThreadOffset() const { return group_ * kRows * stride_ + column_; }
  __device__ bool IsRow(int r) const { return group_ * kRows + r < n_; }
  // Index of element e of a vector that is spread over the lanes of a warp.
  __device__ int Element(int e) const { return lane_ + e * kWarp; }

  __device__ void LoadVector(const float* from, float (&x)[kPerLane]) const {
#pragma unroll
    for (int e = 0; e < kPerLane; ++e) x[e] = Element(e) < n_ ? from[Element(e)] : 0.0f;
  }

  // Gives every thread of the warp the vector's elements for the thread's rows.
  __device__ void BroadcastVector(const float (&x)[kPerLane], SharedPtr<float> to) const {
    __syncwarp();
#pragma unroll
    for (int e = 0; e < kPerLane; ++e) {
      if (Element(e) < kWidth) to[Element(e)] = x[e];
    }
    __syncwarp();
  }
  // Elements of x for the thread's rows r to r + 3.
  __device__ float4 Rows4(SharedPtr<float> x, int r) const {
    return SharedCast<const float4>(x + group_ * kRows)[r / 4];
  }

  // Sums the threads of a column; each lane gets the sums of its elements. Two buffers alternate: a
  // warp that is ahead fills one while others read the other.
  __device__ void Gather(float sum, float (&y)[kPerLane]) {
    const SharedPtr<float> part = partial_ + half_ * kGroups * stride_;
    part[group_ * stride_ + column_] = sum;
    __syncthreads();
#pragma unroll
    for (int e = 0; e < kPerLane; ++e) {
      y[e] = 0;
      if (Element(e) >= n_) continue;
      float of_group[kGroups];
      for (int g = 0; g < kGroups; ++g) of_group[g] = part[g * stride_ + Element(e)];
      y[e] = (of_group[0] + of_group[1]) + (of_group[2] + of_group[3]);
    }
    half_ ^= 1;
  }

  // y = A^T p of the direction p that was broadcast.
  __device__ void Multiply(float (&y)[kPerLane]) {
    float sum = 0;
#pragma unroll
    for (int r = 0; r < kRows; r += 4) {
      const float4 x = Rows4(direction_, r);
      sum = fmaf(h_kk_[r], x.x, sum);
      sum = fmaf(h_kk_[r + 1], x.y, sum);
      sum = fmaf(h_kk_[r + 2], x.z, sum);
      sum = fmaf(h_kk_[r + 3], x.w, sum);
    }
    Gather(sum, y);
  }

  __device__ static float Dot(const float (&a)[kPerLane], const float (&b)[kPerLane]) {
    float sum = 0;
#pragma unroll
    for (int e = 0; e < kPerLane; ++e) sum = fmaf(a[e], b[e], sum);
    return WarpSum(sum);
  }

  __device__ void UpdateKeys(const float* k, float beta, float gamma) {
    float key[kPerLane];
    LoadVector(k, key);
    BroadcastVector(key, key_);
    const float of_column = column_ < n_ ? k[column_] : 0.0f;
#pragma unroll
    for (int r = 0; r < kRows; r += 4) {
      const float4 x = Rows4(key_, r);
      const float left[4] = {beta * x.x, beta * x.y, beta * x.z, beta * x.w};
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        h_kk_[r + i] = fmaf(left[i], of_column, gamma * h_kk_[r + i]);
      }
    }
  }

  // Updates B, then y = B^T p of the direction p that was broadcast.
  __device__ void UpdateAndRead(const float* v, float beta, float gamma, float (&y)[kPerLane]) {
    const float of_column = column_ < n_ ? v[column_] : 0.0f;
    float sum = 0;
    for (int r = 0; r < kRows; r += 4) {
      const float4 key = Rows4(key_, r), direction = Rows4(direction_, r);
      const float left[4] = {beta * key.x, beta * key.y, beta * key.z, beta * key.w},
                  x[4] = {direction.x, direction.y, direction.z, direction.w};
      float element[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        element[i] = IsRow(r + i) ? h_kv_at_[(r + i) * stride_] : 0.0f;
      }
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        element[i] = fmaf(left[i], of_column, gamma * element[i]);
        if (IsRow(r + i)) h_kv_at_[(r + i) * stride_] = element[i];
        sum = fmaf(element[i], x[i], sum);
      }
    }
    Gather(sum, y);
  }

  __device__ void Solve(const float* q, float (&u)[kPerLane]) {
    float r[kPerLane], p[kPerLane], m[kPerLane];
    LoadVector(q, r);
    LoadVector(q, p);
    float e = Dot(r, r);
    for (int iteration = 0; iteration < args_.config.cg_steps; ++iteration) {
      BroadcastVector(p, direction_);
      Multiply(m);
#pragma unroll
      for (int i = 0; i < kPerLane; ++i) m[i] = fmaf(lambda_[i], p[i], m[i]);
      const float size = e / (Dot(p, m) + kMesaCgEps);
#pragma unroll
      for (int i = 0; i < kPerLane; ++i) {
        u[i] = fmaf(size, p[i], u[i]);
        r[i] = fmaf(-size, m[i], r[i]);
      }
      const float next = Dot(r, r), direction_scale = next / (e + kMesaCgEps);
#pragma unroll
      for (int i = 0; i < kPerLane; ++i) p[i] = fmaf(direction_scale, p[i], r[i]);
      e = next;
    }
  }

  const MesaArgs& args_;
  const int head_, n_, stride_, column_, group_, lane_;
  // [kWidth], this warp's
  const SharedPtr<float> direction_, key_;
  const SharedPtr<float> partial_;  // [2][kGroups][stride]
  // First element of the thread's part of A and B.
  float* const h_kk_at_;
  float* const h_kv_at_;
  float h_kk_[kRows];
  float lambda_[kPerLane];
  int half_ = 0;
};

// Grid: (heads, sequences); one thread for each column and group of rows.
template <int kRows>
__global__ void __launch_bounds__(MesaHead<kRows>::kWidth* kGroups)
    MesaKernel(const __grid_constant__ MesaArgs args,
               const __grid_constant__ DeviceSequences seqs) {
  const int s = static_cast<int>(blockIdx.y);
  std::byte* session = seqs.state[s];
  const int32_t first = seqs.token_begin[s], end = seqs.token_begin[s + 1];
  if (session == nullptr || first == end) return;
  MesaHead<kRows> head(args, session, static_cast<int>(blockIdx.x));
  for (int32_t token = first; token < end; ++token) head.AdvanceToken(token);
  head.Store();
}

template <int kRows>
void LaunchMesa(DeviceContext& context, const BatchSequences& seqs, const MesaArgs& args) {
  const auto heads = static_cast<unsigned>(args.config.n_heads);
  const int64_t stride = args.config.stride();
  ForSequenceParts(seqs, [&](unsigned n, const DeviceSequences& some) {
    Launch(context, MesaKernel<kRows>, dim3(heads, n),
           dim3(static_cast<unsigned>(stride * kGroups)), MesaHead<kRows>::SharedBytes(stride),
           args, some);
  });
}

}  // namespace
}  // namespace cuda

void MesaNetCuda(DeviceContext& context, const BatchSequences& seqs, const MesaArgs& args) {
  const int64_t stride = args.config.stride();
  if (stride <= 16) return cuda::LaunchMesa<4>(context, seqs, args);
  if (stride <= 32) return cuda::LaunchMesa<8>(context, seqs, args);
  if (stride <= 64) return cuda::LaunchMesa<16>(context, seqs, args);
  cuda::LaunchMesa<32>(context, seqs, args);
}

}  // namespace ovq::kernels
