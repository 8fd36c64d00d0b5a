// MakeSimdSums with Highway: exact sums of bytes times int8, for one row of x and for many.
// Weights lie row by row, [out, stride] with zeros behind each row's inputs, so there is one
// packing for decode and prefill and nothing to undo. A tile multiplies one to six rows of x with
// some outputs; each of its registers has the sums over every n-th input for one row and one
// output. Sums are exact, so their lanes are added in any order, four registers at a time.
#include <algorithm>
#include <cstring>
#include <iterator>
#include <memory>

#include "kernels/common/highway_targets.h"
#include "kernels/common/instruction_sets.h"
#include "kernels/common/weight_memory.h"
#include "kernels/ops/matmul_device.h"
#include "kernels/ops/parallel_rows.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/ops/matmul_int8_simd_cpu.cc"
//
#include "hwy/foreach_target.h"
#include "hwy/highway.h"

#ifndef OVQ_KERNELS_OPS_MATMUL_INT8_SIMD_ONCE
#define OVQ_KERNELS_OPS_MATMUL_INT8_SIMD_ONCE
namespace ovq::kernels {
namespace {

constexpr int64_t kTileRows = 6;
constexpr int64_t kTileOutputs = 8;  // at most; outputs are padded to a multiple of it
// With at most this many rows weights are read once for all of them, a few outputs at a time.
constexpr int64_t kFewRows = 24;

// sums[n, outputs] = x[n, stride] weights[outputs, stride]^T.
struct SumsBlock {
  const void* x;  // bytes or int16, as RowFormat says
  int64_t n, stride;
  const int8_t* weights;
  int64_t outputs;  // a multiple of kTileOutputs
  int32_t* sums;
};

// How a kernel reads rows of x.
struct RowFormat {
  bool is_bytes;       // or int16
  int64_t multiple;    // of inputs, which rows and weights are padded to
  const char* kernel;  // its name
};

}  // namespace
}  // namespace ovq::kernels
#endif

HWY_BEFORE_NAMESPACE();
namespace ovq::kernels::HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;
constexpr hn::ScalableTag<int32_t> d32;
using Sum = hn::Vec<hn::ScalableTag<int32_t>>;

// Any instruction set: an int16 holds each factor and an int32 the sum of two products.
struct WordDots {
  using Element = int16_t;
  using D16 = hn::ScalableTag<int16_t>;
  using V = hn::Vec<D16>;
  static constexpr const char* kName = "products of 16 bits";
  static HWY_INLINE int64_t Inputs() { return static_cast<int64_t>(hn::Lanes(D16())); }
  static HWY_INLINE V LoadX(const int16_t* x) { return hn::LoadU(D16(), x); }
  static HWY_INLINE V LoadWeights(const int8_t* w) {
    return hn::PromoteTo(D16(), hn::LoadU(hn::Rebind<int8_t, D16>(), w));
  }
  // Adds the products of some inputs to `sum`, of others to `more`.
  static HWY_INLINE void Add(V x, V w, Sum& sum, Sum& more) {
    sum = hn::ReorderWidenMulAccumulate(d32, x, w, sum, more);
  }
};

#if HWY_TARGET == HWY_AVX2
// AVX-VNNI, which Highway has no target for: four products of bytes in one instruction. It is
// written out because a function for AVX-VNNI could not share its tiles with AVX2.
struct ByteDots {
  using Element = uint8_t;
  using D8 = hn::ScalableTag<int8_t>;
  using V = hn::Vec<D8>;
  static constexpr const char* kName = "AVX-VNNI";
  static HWY_INLINE int64_t Inputs() { return static_cast<int64_t>(hn::Lanes(D8())); }
  static HWY_INLINE V LoadX(const uint8_t* x) {
    return hn::LoadU(D8(), reinterpret_cast<const int8_t*>(x));
  }
  static HWY_INLINE V LoadWeights(const int8_t* w) { return hn::LoadU(D8(), w); }
  static HWY_INLINE void Add(V x, V w, Sum& sum, Sum& /*more*/) {
    asm("%{vex%} vpdpbusd %2, %1, %0" : "+x"(sum.raw) : "x"(x.raw), "x"(w.raw));
  }
};
#endif

// to[i] = the sum of all lanes of v[i], i < 4.
#if HWY_TARGET == HWY_SCALAR
HWY_INLINE void StoreFourSums(const Sum* v, int32_t* to) {
  for (int i = 0; i < 4; ++i) to[i] = hn::GetLane(v[i]);
}
#else
// Adds the blocks of four lanes.
template <class D>
HWY_INLINE void StoreSumOfBlocks(D d, hn::Vec<D> v, int32_t* to) {
  if constexpr (hn::MaxLanes(D()) > 4) {
    const hn::Half<D> half;
    StoreSumOfBlocks(half, hn::Add(hn::LowerHalf(half, v), hn::UpperHalf(half, v)), to);
  } else {
    hn::StoreU(v, d, to);
  }
}
HWY_INLINE void StoreFourSums(const Sum* v, int32_t* to) {
  const auto pair = [](Sum a, Sum b) HWY_ATTR {
    return hn::Add(hn::InterleaveLower(d32, a, b), hn::InterleaveUpper(d32, a, b));
  };
  const hn::RepartitionToWide<decltype(d32)> d64;
  const auto a = hn::BitCast(d64, pair(v[0], v[1])), b = hn::BitCast(d64, pair(v[2], v[3]));
  const Sum lower = hn::BitCast(d32, hn::InterleaveLower(d64, a, b)),
            upper = hn::BitCast(d32, hn::InterleaveUpper(d64, a, b));
  StoreSumOfBlocks(d32, hn::Add(lower, upper), to);
}
#endif

template <class Dots, int kRows, int kOutputs>
HWY_INLINE void SumTile(const SumsBlock& block, int64_t row, int64_t output) {
  const auto* const x = static_cast<const typename Dots::Element*>(block.x) + row * block.stride;
  const int8_t* const w = block.weights + output * block.stride;
  constexpr int kSums = kRows * kOutputs, kPadded = (kSums + 3) / 4 * 4;
  Sum sums[kPadded], more[kPadded];
  for (int i = 0; i < kPadded; ++i) sums[i] = more[i] = hn::Zero(d32);
  for (int64_t i = 0; i < block.stride; i += Dots::Inputs()) {
    typename Dots::V weights[kOutputs];
    for (int o = 0; o < kOutputs; ++o) weights[o] = Dots::LoadWeights(w + o * block.stride + i);
    for (int r = 0; r < kRows; ++r) {
      const typename Dots::V factor = Dots::LoadX(x + r * block.stride + i);
      for (int o = 0; o < kOutputs; ++o) {
        Dots::Add(factor, weights[o], sums[r * kOutputs + o], more[r * kOutputs + o]);
      }
    }
  }
  int32_t tile[kPadded];
  for (int i = 0; i < kPadded; ++i) sums[i] = hn::Add(sums[i], more[i]);
  for (int i = 0; i < kPadded; i += 4) StoreFourSums(sums + i, tile + i);
  for (int r = 0; r < kRows; ++r) {
    std::memcpy(block.sums + (row + r) * block.outputs + output, tile + r * kOutputs,
                kOutputs * sizeof(int32_t));
  }
}

// Multiplies some rows, a tile's, with n_outputs outputs.
template <class Dots, int kRows>
void SumRows(const SumsBlock& block, int64_t row, int64_t output, int64_t n_outputs) {
  constexpr int kOutputs = kRows == 1 ? 8 : kRows <= 3 ? 4 : 2;
  static_assert(kTileOutputs % kOutputs == 0);
  for (const int64_t end = output + n_outputs; output < end; output += kOutputs) {
    SumTile<Dots, kRows, kOutputs>(block, row, output);
  }
}

template <class Dots>
void SumBlock(const SumsBlock& block) {
  constexpr void (*kSumRows[])(const SumsBlock&, int64_t, int64_t, int64_t) = {
      SumRows<Dots, 1>, SumRows<Dots, 2>, SumRows<Dots, 3>,
      SumRows<Dots, 4>, SumRows<Dots, 5>, SumRows<Dots, 6>};
  static_assert(std::size(kSumRows) == kTileRows);
  const int64_t n_tiles = (block.n + kTileRows - 1) / kTileRows;
  const int64_t at_once = block.n <= kFewRows ? kTileOutputs : block.outputs;
  for (int64_t output = 0; output < block.outputs; output += at_once) {
    for (int64_t tile = 0; tile < n_tiles; ++tile) {
      const int64_t row = block.n * tile / n_tiles, end = block.n * (tile + 1) / n_tiles;
      kSumRows[end - row - 1](block, row, output, at_once);
    }
  }
}

RowFormat Format() {
#if HWY_TARGET == HWY_AVX2
  if (HasAvxVnni()) return {true, ByteDots::Inputs(), ByteDots::kName};
#endif
  return {false, WordDots::Inputs(), WordDots::kName};
}

void Sums(const RowFormat& format, const SumsBlock& block) {
#if HWY_TARGET == HWY_AVX2
  if (format.is_bytes) return SumBlock<ByteDots>(block);
#else
  (void)format;
#endif
  SumBlock<WordDots>(block);
}

// to[0, stride) = x[0, in) and zeros.
void WidenRow(const uint8_t* x, int64_t in, int16_t* to, int64_t stride) {
  const hn::ScalableTag<int16_t> d16;
  const hn::Rebind<uint8_t, decltype(d16)> d8;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d16));
  int64_t i = 0;
  for (; i + lanes <= in; i += lanes) {
    hn::StoreU(hn::PromoteTo(d16, hn::LoadU(d8, x + i)), d16, to + i);
  }
  for (; i < in; ++i) to[i] = x[i];
  std::fill(to + in, to + stride, int16_t{0});
}

}  // namespace
}  // namespace ovq::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace ovq::kernels {
namespace {

HWY_EXPORT(Format);
HWY_EXPORT(Sums);
HWY_EXPORT(WidenRow);

// A task has some rows and some outputs: as many as keep the sums in a core's first cache, and the
// weights in its second while rows pass by.
constexpr int64_t kBlockRows = 48, kMaxBlockOutputs = 64, kMaxBlockBytes = 128 << 10;

int64_t RoundUp(int64_t n, int64_t multiple) { return (n + multiple - 1) / multiple * multiple; }

// The weights [outputs, stride] and their number of outputs before they were padded.
struct SimdWeights {
  int64_t in, out, stride;
  RowFormat format;
  std::shared_ptr<std::byte> memory;

  void Apply(DeviceContext& context, const uint8_t* x, int64_t n, const cpu::UseSums& use) const;
  // x [n, in] as the kernel reads it: x itself or a copy.
  const void* Rows(DeviceContext& context, ScratchScope& scratch, const uint8_t* x,
                   int64_t n) const;
};

const void* SimdWeights::Rows(DeviceContext& context, ScratchScope& scratch, const uint8_t* x,
                              int64_t n) const {
  if (format.is_bytes && stride == in) return x;
  const auto elements = static_cast<size_t>(n * stride);
  if (format.is_bytes) {
    auto* const rows = scratch.Allocate<uint8_t>(elements);
    for (int64_t row = 0; row < n; ++row) {
      uint8_t* const to = rows + row * stride;
      std::fill(std::copy_n(x + row * in, in, to), to + stride, uint8_t{0});
    }
    return rows;
  }
  auto* const rows = scratch.Allocate<int16_t>(elements);
  ParallelRows(context, n, in, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      HWY_DYNAMIC_DISPATCH(WidenRow)(x + row * in, in, rows + row * stride, stride);
    }
  });
  return rows;
}

void SimdWeights::Apply(DeviceContext& context, const uint8_t* x, int64_t n,
                        const cpu::UseSums& use) const {
  ScratchScope scratch(context);
  const auto* const rows = static_cast<const std::byte*>(Rows(context, scratch, x, n));
  const int64_t row_bytes = stride * (format.is_bytes ? 1 : 2);
  const int64_t most = n <= kFewRows ? kMaxBlockOutputs / 2 : kMaxBlockOutputs;
  const int64_t block_outputs =
      std::clamp(kMaxBlockBytes / stride / kTileOutputs * kTileOutputs, kTileOutputs, most);
  const int64_t row_blocks = (n + kBlockRows - 1) / kBlockRows;
  const int64_t output_blocks = (out + block_outputs - 1) / block_outputs;
  const int64_t work = std::min(n, kBlockRows) * block_outputs * in;
  ParallelRows(context, output_blocks * row_blocks, work, [&](int64_t begin, int64_t end) {
    int32_t sums[kBlockRows * kMaxBlockOutputs];
    for (int64_t task = begin; task < end; ++task) {
      const int64_t row = task % row_blocks * kBlockRows;
      const int64_t output = task / row_blocks * block_outputs;
      const int64_t outputs = std::min(block_outputs, out - output);
      const SumsBlock block = {
          .x = rows + row * row_bytes,
          .n = std::min(kBlockRows, n - row),
          .stride = stride,
          .weights = reinterpret_cast<const int8_t*>(memory.get()) + output * stride,
          .outputs = RoundUp(outputs, kTileOutputs),
          .sums = sums};
      HWY_DYNAMIC_DISPATCH(Sums)(format, block);
      for (int64_t i = 0; i < block.n; ++i) {
        use(row + i, output, {sums + i * block.outputs, static_cast<size_t>(outputs)});
      }
    }
  });
}

}  // namespace

namespace cpu {

Int8Sums MakeSimdSums(const Int8Weights& weights) {
  const RowFormat format = HWY_DYNAMIC_DISPATCH(Format)();
  const auto packed =
      std::make_shared<SimdWeights>(SimdWeights{.in = weights.in,
                                                .out = weights.out,
                                                .stride = RoundUp(weights.in, format.multiple),
                                                .format = format,
                                                .memory = nullptr});
  const auto bytes = static_cast<size_t>(RoundUp(weights.out, kTileOutputs) * packed->stride);
  packed->memory = WeightMemory(bytes);
  std::memset(packed->memory.get(), 0, bytes);
  for (int64_t o = 0; o < weights.out; ++o) {
    std::memcpy(packed->memory.get() + o * packed->stride, weights.values.data() + o * weights.in,
                static_cast<size_t>(weights.in));
  }
  return {bytes, format.kernel,
          [packed](DeviceContext& context, const uint8_t* x, int64_t n, const UseSums& use) {
            packed->Apply(context, x, n, use);
          }};
}

}  // namespace cpu
}  // namespace ovq::kernels
#endif  // HWY_ONCE
