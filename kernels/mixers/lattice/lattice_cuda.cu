// Lattice on CUDA, by the equations of lattice_cpu.cc. A thread block handles a head of a sequence,
// whose slots lie in shared memory over all tokens of the batch. Warp w has slots w, w + kWarps,
// ...; each element of a slot belongs to one lane. Sums over slots meet at a barrier.
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "kernels/common/cuda/cuda_device.h"
#include "kernels/mixers/common/cuda/sequence_parts.h"
#include "kernels/mixers/lattice/lattice.h"
#include "kernels/ops/cuda/rows.cuh"

namespace ovq::kernels {
namespace cuda {
namespace {

constexpr int kWarps = 8;
constexpr int kLatticeThreads = kWarps * kWarp;
constexpr int kTogether = 4;  // slots that a warp updates together to hide the latency of their
                              // sums
static_assert(kMaxLatticeValueDim <= kLatticeThreads, "a thread for every channel");

// kPerLane: channels of a lane; channel e of the lane is lane + 32 e.
template <int kPerLane>
class LatticeHead {
 public:
  using Row = float[kPerLane];

  __device__ LatticeHead(const LatticeArgs& args, std::byte* session, int head)
      : args_(args),
        head_(head),
        n_slots_(args.config.n_slots),
        stride_(static_cast<int>(args.config.stride())),
        warp_(static_cast<int>(threadIdx.x) / kWarp),
        lane_(static_cast<int>(threadIdx.x) % kWarp),
        slots_(DynamicShared<float>(0)),
        partial_(slots_ + n_slots_ * stride_),
        state_(args.slots.At<float>(session, head)) {
    ForEachElement([&](int at) { slots_[at] = state_[at]; });
  }

  __device__ void AdvanceToken(int64_t token) {
    const LatticeConfig& config = args_.config;
    const int64_t first = int64_t{head_} * config.value_head_dim;
    const float* keys = args_.k + token * args_.qk_stride + int64_t{head_} * n_slots_;
    Row target;
#pragma unroll
    for (int e = 0; e < kPerLane; ++e) {
      const int c = Channel(e);
      target[e] = c < config.value_head_dim ? args_.v[token * args_.v_stride + first + c] : 0.0f;
    }
    if (config.objective == LatticeObjective::kDecoding) SubtractRead(keys, target);
    Row read = {};
    Update(token, keys, target, read);
    const SharedPtr<float> part = Publish(read);
    const int c = static_cast<int>(threadIdx.x);
    if (c < config.value_head_dim) args_.y[token * config.value_width() + first + c] = Sum(part, c);
  }

  __device__ void Store() const {
    ForEachElement([&](int at) {
      const float element = slots_[at];
      state_[at] = element;
    });
  }

 private:
  __device__ int Channel(int e) const { return lane_ + e * kWarp; }

  // Calls fn for this lane's elements of all the warp's slots.
  template <class Fn>
  __device__ void ForEachElement(Fn&& fn) const {
    for (int i = warp_; i < n_slots_; i += kWarps) {
      for (int c = lane_; c < stride_; c += kWarp) fn(i * stride_ + c);
    }
  }

  __device__ void Load(int i, Row& s) const {
#pragma unroll
    for (int e = 0; e < kPerLane; ++e) {
      s[e] = 0;
      if (i < n_slots_ && Channel(e) < stride_) s[e] = slots_[i * stride_ + Channel(e)];
    }
  }

  __device__ static float Dot(const Row& a, const Row& b) {
    float sum = 0;
#pragma unroll
    for (int e = 0; e < kPerLane; ++e) sum = fmaf(a[e], b[e], sum);
    return WarpSum(sum);
  }

  // 1 / l_i of a slot.
  __device__ float InverseLength(const Row& s) const {
    return args_.config.normalized_projection ? 1.0f : 1.0f / sqrtf(Dot(s, s));
  }

  // Writes a warp's partial sum. Two buffers alternate: a warp that is ahead fills one while others
  // read the other.
  __device__ SharedPtr<float> Publish(const Row& of_warp) {
    const SharedPtr<float> part = partial_ + half_ * kWarps * stride_;
#pragma unroll
    for (int e = 0; e < kPerLane; ++e) {
      if (Channel(e) < stride_) part[warp_ * stride_ + Channel(e)] = of_warp[e];
    }
    __syncthreads();
    half_ ^= 1;
    return part;
  }
  __device__ float Sum(SharedPtr<float> part, int channel) const {
    float sum = 0;
    for (int warp = 0; warp < kWarps; ++warp) {
      const float other = part[warp * stride_ + channel];
      sum += other;
    }
    return sum;
  }

  // v -= sum_i k_i phi_i (eq. 6).
  __device__ void SubtractRead(const float* keys, Row& v) {
    Row sum = {};
    for (int i = warp_; i < n_slots_; i += kWarps) {
      Row s;
      Load(i, s);
      const float weight = keys[i] * InverseLength(s);
#pragma unroll
      for (int e = 0; e < kPerLane; ++e) sum[e] = fmaf(weight, s[e], sum[e]);
    }
    const SharedPtr<float> part = Publish(sum);
#pragma unroll
    for (int e = 0; e < kPerLane; ++e) {
      if (Channel(e) < stride_) v[e] -= Sum(part, Channel(e));
    }
  }

  __device__ void Update(int64_t token, const float* keys, const Row& h, Row& read) {
    const float* queries = args_.q + token * args_.qk_stride + int64_t{head_} * n_slots_;
    for (int first = warp_; first < n_slots_; first += kTogether * kWarps) {
      Row s[kTogether], w[kTogether];
#pragma unroll
      for (int t = 0; t < kTogether; ++t) {
        const int i = first + t * kWarps;
        Load(i, s[t]);
        MoveSlot(token, i < n_slots_ ? keys[i] : 0.0f, h, s[t], w[t]);
      }
#pragma unroll
      for (int t = 0; t < kTogether; ++t) {
        const int i = first + t * kWarps;
        const float squares = Dot(w[t], w[t]);
        if (i < n_slots_) StoreAndRead(i, squares, queries[i], s[t], w[t], read);
      }
    }
  }

  __device__ void MoveSlot(int64_t token, float k, const Row& h, const Row& s, Row& w) const {
    const int64_t gate = token * args_.config.n_heads + head_;
    const float inverse = InverseLength(s), towards = Dot(s, h) * inverse;
    const float c = args_.config.objective == LatticeObjective::kEncoding ? k - towards : k;
    const float size = args_.gates.gamma[gate] * c * inverse, along = towards * inverse;
    const float mu = args_.gates.Mu(gate), threshold = args_.gates.Tau(gate, head_);
#pragma unroll
    for (int e = 0; e < kPerLane; ++e) {
      w[e] = fmaf(size, fmaf(-along, s[e], h[e]), mu * s[e]);
      if (threshold > 0) w[e] = copysignf(fmaxf(fabsf(w[e]) - threshold, 0.0f), w[e]);
    }
  }

  __device__ void StoreAndRead(int i, float squares, float q, const Row& s, const Row& w,
                               Row& read) {
    const bool is_left = squares > 0;
    const float scale = args_.config.normalized_projection ? 1.0f / sqrtf(squares) : 1.0f;
#pragma unroll
    for (int e = 0; e < kPerLane; ++e) {
      const float updated = is_left ? w[e] * scale : s[e];
      if (Channel(e) < stride_) slots_[i * stride_ + Channel(e)] = updated;
      read[e] = fmaf(q, updated, read[e]);
    }
  }

  const LatticeArgs& args_;
  const int head_, n_slots_, stride_, warp_, lane_;
  const SharedPtr<float> slots_;    // [n_slots][stride]
  const SharedPtr<float> partial_;  // [2][kWarps][stride]
  float* const state_;
  int half_ = 0;
};

// Grid: (heads, sequences).
template <int kPerLane>
__global__ void __launch_bounds__(kLatticeThreads)
    LatticeKernel(const __grid_constant__ LatticeArgs args,
                  const __grid_constant__ DeviceSequences seqs) {
  const int s = static_cast<int>(blockIdx.y);
  std::byte* session = seqs.state[s];
  const int32_t first = seqs.token_begin[s], end = seqs.token_begin[s + 1];
  if (session == nullptr || first == end) return;
  LatticeHead<kPerLane> head(args, session, static_cast<int>(blockIdx.x));
  for (int32_t token = first; token < end; ++token) head.AdvanceToken(token);
  head.Store();
}

// A head's slots, then two buffers of the warps' partial sums.
size_t SharedBytes(const LatticeConfig& config) {
  return static_cast<size_t>((config.n_slots + 2 * kWarps) * config.stride()) * sizeof(float);
}

}  // namespace
}  // namespace cuda

absl::Status CheckLatticeCuda(DeviceContext& context, const LatticeConfig& config) {
  const size_t wanted = cuda::SharedBytes(config), given = context.cuda().max_shared_bytes;
  if (wanted <= given) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      "device 'cuda': expected ", wanted, " bytes of shared memory for a lattice head (num_slots ",
      config.n_slots, ", value_head_dim ", config.value_head_dim, "), ", context.cuda().name,
      " gives a thread block ", given));
}

void LatticeCuda(DeviceContext& context, const BatchSequences& seqs, const LatticeArgs& args) {
  const int64_t stride = args.config.stride();
  const auto heads = static_cast<unsigned>(args.config.n_heads);
  const auto kernel = stride <= 32    ? cuda::LatticeKernel<1>
                      : stride <= 64  ? cuda::LatticeKernel<2>
                      : stride <= 128 ? cuda::LatticeKernel<4>
                                      : cuda::LatticeKernel<8>;
  cuda::ForSequenceParts(seqs, [&](unsigned n, const DeviceSequences& some) {
    cuda::Launch(context, kernel, dim3(heads, n), cuda::kLatticeThreads,
                 cuda::SharedBytes(args.config), args, some);
  });
}

}  // namespace ovq::kernels
