// y[n, out] (+)= x[n, in] W^T for few rows: product_chain.h.
//
// W is the left factor of the matrix instruction (16 outputs by 16 inputs), the rows of x are the
// columns of the other, eight at a time. A warp has a tile of 16 outputs and all inputs. While the
// kernels before it still run, the thread block copies all weights of its tiles to shared memory;
// what is left to do after them is to read x and to go through the chain, whose instructions wait
// for each other.
//
// A tile's outputs are two octets, eight adjacent ones each: of one run of 16, or, for SwiGLU, a
// gate's and the same of the values that it multiplies, which meet in a lane.
//
// Shared memory: weights [vectors][outputs of the block], x [vectors][kXStride], a vector being 8
// inputs in a uint4, so that copies and ldmatrix meet no bank conflict; then the norm's weights.
// Zeros past `in` and `out`.
#pragma once

#include <cstdint>

#include "kernels/common/cuda/ptx.cuh"
#include "kernels/common/cuda/shared.cuh"
#include "kernels/ops/cuda/rows.cuh"
#include "kernels/ops/product_chain.h"

namespace ovq::kernels::cuda {

inline constexpr int kChainTile = 16;     // outputs of a warp
inline constexpr int kMaxChainTiles = 4;  // of a block, a power of two
inline constexpr int kOctet = 8;
inline constexpr int kVectorInputs = 8;
inline constexpr int kLinkVectors = 4;  // a link of the chain is two instructions
inline constexpr int kLinkInputs = kLinkVectors * kVectorInputs;
// The weights arrive in this many portions, and the chain goes through one when it is there.
inline constexpr int kPortions = 4;

struct ChainShape {
  int n_links, n_tiles;  // links of the inputs; tiles of a block

  __host__ __device__ int outs() const { return n_tiles * kChainTile; }
  __host__ __device__ int n_vectors() const { return n_links * kLinkVectors; }
  __host__ __device__ int begin(int portion) const { return n_links * portion / kPortions; }
};

// kRows: 1, 8 or 16, at least task.n.
template <int kRows>
class Chain {
 public:
  static constexpr int kWarps = kRows > 8 ? 16 : 8;  // a row's norm is a warp's
  static constexpr int kThreads = kWarps * kWarp;
  static constexpr int kBlocks = kRows > 8 ? 1 : 4;  // of a multiprocessor, as to registers
  static size_t SharedBytes(ChainShape shape, bool has_norm) {
    const int vectors = shape.outs() + kXStride + (has_norm ? kNormVectors : 0);
    return static_cast<size_t>(shape.n_vectors()) * vectors * sizeof(uint4);
  }

  __device__ Chain(const ChainTask& task, ChainShape shape)
      : task_(task),
        shape_(shape),
        octet_outs_(static_cast<int>(task.swiglu == nullptr ? task.out : task.out / 2)),
        lane_(static_cast<int>(threadIdx.x) % kWarp),
        warp_(static_cast<int>(threadIdx.x) / kWarp),
        weights_(DynamicShared<uint4>(0)),
        x_(weights_ + shape.n_vectors() * shape.outs()),
        norm_(SharedCast<float4>(x_ + shape.n_vectors() * kXStride)) {}

  // Starts to copy the norm's weights and then those of the product, portion by portion.
  __device__ void CopyWeights() const {
    if (task_.norm.x != nullptr) {
      for (int i = static_cast<int>(threadIdx.x); i < task_.in / 4; i += kThreads) {
        CopyAsync16(SharedCast<uint4>(norm_) + i, task_.norm.weight + 4 * i, true);
      }
    }
    CommitCopies();
    for (int portion = 0; portion < kPortions; ++portion) {
      CopyPortion(portion);
      CommitCopies();
    }
  }

  __device__ void StoreRows() const {
    if (task_.norm.x == nullptr) return CopyRows();
    NormalizeRows();
  }

  // Goes through the chain.
  __device__ void Multiply() {
#pragma unroll
    for (int portion = 0; portion < kPortions; ++portion) {
      WaitForPortion(portion);
      __syncthreads();
      const int begin = shape_.begin(portion), end = shape_.begin(portion + 1);
      if (multiplies() && begin < end) Multiply(begin, end);
    }
  }

  __device__ void LoadBefore() {
    if (!multiplies() || !task_.accumulate) return;
    ForSums([&](int r, int i, int64_t row, int64_t out) {
      before_[r][i] = task_.y[row * task_.out + out];
    });
  }

  __device__ void StoreSums() const {
    if (!multiplies()) return;
    ForSums([&](int r, int i, int64_t row, int64_t out) {
      const float sum = sum_[r][i];
      if (task_.swiglu == nullptr) {
        task_.y[row * task_.out + out] = task_.accumulate ? before_[r][i] + sum : sum;
      } else if (i < 2) {
        const uint32_t value = PackBF16(Silu(sum) * sum_[r][i + 2], 0);
        task_.swiglu[row * octet_outs_ + out].bits = static_cast<uint16_t>(value);
      }
    });
  }

 private:
  static constexpr int kRowTiles = (kRows + 7) / 8;
  static constexpr int kXStride = kRows == 1 ? 1 : kRows + 1;  // odd
  static constexpr int kNormVectors = kVectorInputs * sizeof(float) / sizeof(uint4);
  static_assert(kWarps % (2 * kMaxChainTiles) == 0);

  // A link's factors as lanes hold them.
  struct Link {
    uint32_t w[2][4], x[kRowTiles][4];
  };

  __device__ bool multiplies() const { return warp_ < shape_.n_tiles; }

  // Octets i and i + 1 of the block are a tile's. Returns the octet's first output among
  // octet_outs_.
  __device__ int64_t OctetBegin(int octet) const {
    const int64_t first_tile = int64_t{blockIdx.x} * shape_.n_tiles;
    if (task_.swiglu != nullptr) return (first_tile + octet / 2) * kOctet;
    return (2 * first_tile + octet) * kOctet;
  }

  // A warp copies an octet's link at a time: 64 bytes of each output's row.
  __device__ void CopyPortion(int portion) const {
    const int n_octets = 2 * shape_.n_tiles, octet = warp_ % n_octets;
    const int64_t out = OctetBegin(octet) + lane_ % kOctet;
    const bool is_second = task_.swiglu != nullptr && octet % 2 == 1;
    const int64_t row = min(out, int64_t{octet_outs_} - 1) + (is_second ? octet_outs_ : 0);
    const BF16* from = task_.weights + row * task_.in;
    const SharedPtr<uint4> to = weights_ + (octet * kOctet + lane_ % kOctet);
    const int end = shape_.begin(portion + 1);
    for (int link = shape_.begin(portion) + warp_ / n_octets; link < end;
         link += kWarps / n_octets) {
      const int vector = link * kLinkVectors + lane_ / kOctet, input = vector * kVectorInputs;
      CopyAsync16(to + vector * shape_.outs(), from + input, out < octet_outs_ && input < task_.in);
    }
  }

  // Several loads are on their way at once.
  __device__ void CopyRows() const {
    constexpr int kAtOnce = 4;
    const int n = shape_.n_vectors() * kRows;
    for (int first = static_cast<int>(threadIdx.x); first < n; first += kAtOnce * kThreads) {
      uint4 loaded[kAtOnce];
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        const int at = first + i * kThreads, row = at % kRows, input = at / kRows * kVectorInputs;
        const bool inside = row < task_.n && input < task_.in;
        loaded[i] = inside ? *reinterpret_cast<const uint4*>(task_.x + row * task_.in + input)
                           : make_uint4(0, 0, 0, 0);
      }
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        const int at = first + i * kThreads;
        if (at < n) x_[at / kRows * kXStride + at % kRows] = loaded[i];
      }
    }
  }

  // Each warp a row, zeros past the last. The first block writes the rows for other readers.
  __device__ void NormalizeRows() const {
    const NormTask& norm = task_.norm;
    const bool inside = warp_ < task_.n;
    const float* row = norm.x;
    float factor = 0;
    if (inside) {
      row += (norm.rows == nullptr ? int64_t{warp_} : norm.rows[warp_]) * task_.in;
      factor = RmsFactor(row, task_.in, norm.eps, true);
    }
    WaitCopies<kPortions>();
    __syncthreads();
    if (warp_ >= kRows) return;
    const SharedPtr<uint2> to = SharedCast<uint2>(x_ + warp_);
#pragma unroll 4
    for (int i = lane_ * 4; i < shape_.n_links * kLinkInputs; i += 4 * kWarp) {
      float4 normed = make_float4(0, 0, 0, 0);
      if (inside && i < task_.in) {
        const float4 weight = norm_[i / 4], v = *reinterpret_cast<const float4*>(row + i);
        normed = RmsNormed(v, factor, weight, make_float4(0, 0, 0, 0));
        if (blockIdx.x == 0) Store4(norm.y, warp_, i, task_.in, true, normed);
      }
      to[i / kVectorInputs * kXStride * 2 + i / 4 % 2] =
          make_uint2(PackBF16(normed.x, normed.y), PackBF16(normed.z, normed.w));
    }
  }

  // Adds links; the next factors are on their way meanwhile.
  __device__ void Multiply(int begin, int end) {
    Link link = Load(begin);
#pragma unroll 4
    for (int i = begin; i < end; ++i) {
      const Link next = Load(min(i + 1, end - 1));
      Add(link);
      link = next;
    }
  }

  __device__ Link Load(int link) const {
    Link loaded;
    const int vector = link * kLinkVectors;
    const SharedPtr<const uint4> w = weights_ + (warp_ * kChainTile + lane_ % kChainTile);
    const SharedPtr<const uint4> x = x_ + lane_ % (kRows < 8 ? kRows : 8);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      LoadMatrices(loaded.w[i], w + (vector + 2 * i + lane_ / kChainTile) * shape_.outs());
    }
#pragma unroll
    for (int r = 0; r < kRowTiles; ++r) {
      LoadMatrices(loaded.x[r], x + ((vector + lane_ / 8) * kXStride + r * 8));
    }
    return loaded;
  }

  __device__ void Add(const Link& link) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
#pragma unroll
      for (int r = 0; r < kRowTiles; ++r) {
        MmaBF16(sum_[r], link.w[i], link.x[r][2 * i], link.x[r][2 * i + 1]);
      }
    }
  }

  // Waits for this thread's copies of a portion and all before it.
  static __device__ void WaitForPortion(int portion) {
    static_assert(kPortions == 4);
    if (portion == 0) WaitCopies<3>();
    if (portion == 1) WaitCopies<2>();
    if (portion == 2) WaitCopies<1>();
    if (portion == 3) WaitCopies<0>();
  }

  // Calls fn(r, i, row, out) for each sum_[r][i] that this lane has of rows and octet_outs_.
  template <class Fn>
  __device__ void ForSums(Fn&& fn) const {
#pragma unroll
    for (int r = 0; r < kRowTiles; ++r) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int64_t row = r * 8 + lane_ % 4 * 2 + i % 2;
        const int64_t out = OctetBegin(2 * warp_ + i / 2) + lane_ / 4;
        if (row < task_.n && out < octet_outs_) fn(r, i, row, out);
      }
    }
  }

  const ChainTask& task_;
  const ChainShape shape_;
  const int octet_outs_, lane_, warp_;
  const SharedPtr<uint4> weights_, x_;
  const SharedPtr<float4> norm_;
  float before_[kRowTiles][4] = {}, sum_[kRowTiles][4] = {};
};

// grid: blocks of shape.n_tiles tiles.
template <int kRows>
__global__ void __launch_bounds__(Chain<kRows>::kThreads, Chain<kRows>::kBlocks)
    ChainKernel(const ChainTask task, const ChainShape shape) {
  AllowNextKernel();
  Chain<kRows> chain(task, shape);
  chain.CopyWeights();
  WaitForKernelsBefore();
  chain.LoadBefore();
  chain.StoreRows();
  chain.Multiply();
  chain.StoreSums();
}

}  // namespace ovq::kernels::cuda
