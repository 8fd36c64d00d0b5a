// Products of our own with Highway. MakeSimdProduct: y[n, out] (+)= x[n, in] W^T, W [out, in].
// MakeSimdSums: exact sums of bytes times int8, for one row of x and for many. Their weights lie
// row by row, [out, stride] with zeros behind each row's inputs, so there is one packing for decode
// and prefill. A tile multiplies one to six rows of x with some outputs; each of its registers has
// the sums over every n-th input for one row and one output. Sums are exact, so their lanes are
// added in any order, four registers at a time.
//
// Both prefetch the weights that come next while the first rows pass: with several rows, or several
// rows of weights at a time, the hardware prefetcher alone leaves a core waiting for memory half of
// the time.
#include <algorithm>
#include <cstring>
#include <iterator>
#include <memory>
#include <vector>

#include "kernels/common/highway_targets.h"
#include "kernels/common/instruction_sets.h"
#include "kernels/common/prefetch.h"
#include "kernels/common/weight_memory.h"
#include "kernels/ops/matmul_device.h"
#include "kernels/ops/parallel_rows.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/ops/matmul_simd_cpu.cc"
//
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
//
#include "kernels/common/load_wide-inl.h"

#ifndef OVQ_KERNELS_OPS_MATMUL_SIMD_ONCE
#define OVQ_KERNELS_OPS_MATMUL_SIMD_ONCE
namespace ovq::kernels {
namespace {

constexpr int64_t kTileOutputs = 8;  // at most; outputs are padded to a multiple of it
// Some rows pass by as many outputs at a time as keep their weights in a core's first cache.
constexpr int64_t kGroupBytes = 16 << 10;

// sums[n, outputs] = x[n, stride] weights[outputs, stride]^T.
struct SumsBlock {
  const void* x;  // as RowFormat says
  int64_t n, stride;
  const int8_t* weights;
  int64_t outputs;  // a multiple of kTileOutputs
  int32_t* sums;
};

// How a kernel reads rows of x.
struct RowFormat {
  enum Elements : uint8_t { kUnsigned, kSigned, kWords };  // q + 128 as bytes, q as int8 or int16
  Elements elements;
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
using D = hn::ScalableTag<float>;
using V = hn::Vec<D>;
constexpr D d;

// A panel is two vectors of columns. Six rows times a panel are twelve sums in registers: enough to
// hide the latency of a multiply-add, and they fit the sixteen registers of AVX2.
constexpr int kPanelVectors = 2;
constexpr int kRowTile = 6;

int64_t PanelColumns() { return kPanelVectors * static_cast<int64_t>(hn::Lanes(d)); }

// y [n, columns] (+)= x [n, in] . weights [in, PanelColumns()], rows of y y_stride apart.
template <class T>
struct PanelTask {
  const float* x;
  int64_t n, in;
  const T* weights;
  float* y;
  int64_t y_stride, columns;
  bool accumulate;
};

// Multiplies kRows rows. kAhead: and prefetches the panel behind this one.
template <int kRows, bool kAhead, class T>
void Tile(const PanelTask<T>& task, int64_t first_row) {
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  const int64_t in = task.in;
  const float* x = task.x + first_row * in;
  V sum[kRows][kPanelVectors];
  for (int r = 0; r < kRows; ++r) {
    for (int v = 0; v < kPanelVectors; ++v) sum[r][v] = hn::Zero(d);
  }
  const T* const next = task.weights + in * kPanelVectors * lanes;
  for (int64_t i = 0; i < in; ++i) {
    if constexpr (kAhead) {
      PrefetchToL2(next + i * kPanelVectors * lanes, kPanelVectors * lanes * sizeof(T));
    }
    V w[kPanelVectors];
    for (int v = 0; v < kPanelVectors; ++v) {
      w[v] = LoadWide(d, task.weights + (i * kPanelVectors + v) * lanes);
    }
    for (int r = 0; r < kRows; ++r) {
      const V factor = hn::Set(d, x[r * in + i]);
      for (int v = 0; v < kPanelVectors; ++v) sum[r][v] = hn::MulAdd(factor, w[v], sum[r][v]);
    }
  }
  HWY_ALIGN float row[kPanelVectors * hn::MaxLanes(d)];
  for (int r = 0; r < kRows; ++r) {
    for (int v = 0; v < kPanelVectors; ++v) hn::Store(sum[r][v], d, row + v * lanes);
    float* y = task.y + (first_row + r) * task.y_stride;
    for (int64_t c = 0; c < task.columns; ++c) y[c] = task.accumulate ? y[c] + row[c] : row[c];
  }
}

// Tiles of at most kMost rows: of `n` rows in all, as few as there can be, and about as large each.
// run(tile, row, n_rows)
template <int kMost, class Fn>
HWY_INLINE void ForEachTile(int64_t n, Fn&& run) {
  const int64_t n_tiles = (n + kMost - 1) / kMost;
  for (int64_t tile = 0; tile < n_tiles; ++tile) {
    const int64_t row = n * tile / n_tiles;
    run(tile, row, n * (tile + 1) / n_tiles - row);
  }
}

// One row is bound by memory, and is not faster with prefetches of ours.
template <class T>
void MultiplyPanel(TensorView x, TensorView packed, TensorView y, int64_t panel, bool accumulate) {
  constexpr void (*kTiles[][2])(const PanelTask<T>&, int64_t) = {
      {Tile<1, false, T>, Tile<1, false, T>}, {Tile<2, false, T>, Tile<2, true, T>},
      {Tile<3, false, T>, Tile<3, true, T>},  {Tile<4, false, T>, Tile<4, true, T>},
      {Tile<5, false, T>, Tile<5, true, T>},  {Tile<6, false, T>, Tile<6, true, T>}};
  static_assert(std::size(kTiles) == kRowTile);
  const int64_t in = x.shape[1], out = y.shape[1], columns = PanelColumns();
  const PanelTask<T> task = {.x = x.as<float>(),
                             .n = x.shape[0],
                             .in = in,
                             .weights = packed.as<T>() + panel * in * columns,
                             .y = y.as<float>() + panel * columns,
                             .y_stride = out,
                             .columns = std::min(columns, out - panel * columns),
                             .accumulate = accumulate};
  ForEachTile<kRowTile>(task.n, [&](int64_t tile, int64_t row, int64_t n_rows) {
    kTiles[n_rows - 1][tile == 0](task, row);
  });
}

// Multiplies one panel of packed [panels, in, columns] with x [n, in] F32.
void Panel(TensorView x, TensorView packed, TensorView y, int64_t panel, bool accumulate) {
  const auto run = packed.dtype == DType::kF32 ? MultiplyPanel<float> : MultiplyPanel<BF16>;
  run(x, packed, y, panel, accumulate);
}

constexpr hn::ScalableTag<int32_t> d32;
using Sum = hn::Vec<hn::ScalableTag<int32_t>>;

// Compilers would otherwise compute the products of many sums before they add one, for which there
// are not enough registers.
#undef OVQ_ADDED
#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3
#define OVQ_ADDED(sum) asm("" : "+v"(sum.raw))
#else
#define OVQ_ADDED(sum)
#endif

// Any instruction set: an int16 holds each factor and an int32 the sum of two products.
struct WordDots {
  using Element = int16_t;
  using D16 = hn::ScalableTag<int16_t>;
  using X = hn::Vec<D16>;
  using W = X;
  static constexpr int kTileRows = 4;
  static HWY_INLINE int64_t Inputs() { return static_cast<int64_t>(hn::Lanes(D16())); }
  static HWY_INLINE X LoadX(const int16_t* x) { return hn::LoadU(D16(), x); }
  static HWY_INLINE W LoadWeights(const int8_t* w) {
    return hn::PromoteTo(D16(), hn::LoadU(hn::Rebind<int8_t, D16>(), w));
  }
  // Adds the products of some inputs to `sum`, of others to `more`.
  static HWY_INLINE void Add(X x, W w, Sum& sum, Sum& more) {
    sum = hn::ReorderWidenMulAccumulate(d32, x, w, sum, more);
    OVQ_ADDED(sum);
  }
};

#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_NEON
using Bytes = hn::Vec<hn::ScalableTag<int8_t>>;
HWY_INLINE Bytes LoadBytes(const void* bytes) {
  return hn::LoadU(hn::ScalableTag<int8_t>(), static_cast<const int8_t*>(bytes));
}
#endif

#if HWY_TARGET == HWY_AVX2

// AVX2 multiplies unsigned bytes with signed ones, and sums of two products saturate at int16.
// Signs of x times those of the weights, and the weights without theirs, are all within 127: two
// products are at most 2 * 127 * 127 < 2^15, so nothing saturates.
struct SignDots {
  using Element = int8_t;
  using X = Bytes;
  struct W {
    Bytes values, magnitudes;
  };
  static constexpr int kTileRows = 4;
  static HWY_INLINE int64_t Inputs() { return sizeof(X); }
  static HWY_INLINE X LoadX(const int8_t* x) { return LoadBytes(x); }
  static HWY_INLINE W LoadWeights(const int8_t* w) {
    const Bytes values = LoadBytes(w);
    return {values, hn::Abs(values)};
  }
  static HWY_INLINE void Add(X x, W w, Sum& sum, Sum& /*more*/) {
    const __m256i with_signs = _mm256_sign_epi8(x.raw, w.values.raw);
    const __m256i pairs = _mm256_maddubs_epi16(w.magnitudes.raw, with_signs);
    sum.raw = _mm256_add_epi32(sum.raw, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
    OVQ_ADDED(sum);
  }
};

// AVX-VNNI, which Highway has no target for: four products of unsigned bytes with signed ones in
// one instruction. It is written out because a function for AVX-VNNI could not share its tiles with
// AVX2.
struct VnniDots {
  using Element = uint8_t;
  using X = Bytes;
  using W = Bytes;
  static constexpr int kTileRows = 6;
  static HWY_INLINE int64_t Inputs() { return sizeof(X); }
  static HWY_INLINE X LoadX(const uint8_t* x) { return LoadBytes(x); }
  static HWY_INLINE W LoadWeights(const int8_t* w) { return LoadBytes(w); }
  static HWY_INLINE void Add(X x, W w, Sum& sum, Sum& /*more*/) {
    asm("%{vex%} vpdpbusd %2, %1, %0" : "+x"(sum.raw) : "x"(x.raw), "x"(w.raw));
  }
};
#endif

#if HWY_TARGET == HWY_NEON
// ARMv8.2's dot products of signed bytes, which Highway has no target for either.
struct NeonDots {
  using Element = int8_t;
  using X = Bytes;
  using W = Bytes;
  static constexpr int kTileRows = 6;
  static HWY_INLINE int64_t Inputs() { return sizeof(X); }
  static HWY_INLINE X LoadX(const int8_t* x) { return LoadBytes(x); }
  static HWY_INLINE W LoadWeights(const int8_t* w) { return LoadBytes(w); }
  static HWY_INLINE void Add(X x, W w, Sum& sum, Sum& /*more*/) {
    asm(".arch_extension dotprod\n\tsdot %0.4s, %1.16b, %2.16b"
        : "+w"(sum.raw)
        : "w"(x.raw), "w"(w.raw));
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

// `ahead`: weights to prefetch, as many as the tile reads.
template <class Dots, int kRows, int kOutputs, bool kAhead>
HWY_INLINE void SumTile(const SumsBlock& block, int64_t row, int64_t output, const int8_t* ahead) {
  const auto* const x = static_cast<const typename Dots::Element*>(block.x) + row * block.stride;
  const int8_t* const w = block.weights + output * block.stride;
  constexpr int kSums = kRows * kOutputs, kPadded = (kSums + 3) / 4 * 4;
  Sum sums[kPadded], more[kPadded];
  for (int i = 0; i < kPadded; ++i) sums[i] = more[i] = hn::Zero(d32);
  int64_t input = 0;
  do {  // A row has inputs; if the compiler did not know, it would keep each sum twice.
    if constexpr (kAhead) {
      PrefetchToL2(ahead + kOutputs * input, kOutputs * Dots::Inputs());
    }
    typename Dots::W weights[kOutputs];
    for (int o = 0; o < kOutputs; ++o) weights[o] = Dots::LoadWeights(w + o * block.stride + input);
    for (int r = 0; r < kRows; ++r) {
      const typename Dots::X factor = Dots::LoadX(x + r * block.stride + input);
      for (int o = 0; o < kOutputs; ++o) {
        Dots::Add(factor, weights[o], sums[r * kOutputs + o], more[r * kOutputs + o]);
      }
    }
    input += Dots::Inputs();
  } while (input < block.stride);
  int32_t tile[kPadded];
  for (int i = 0; i < kPadded; ++i) sums[i] = hn::Add(sums[i], more[i]);
  for (int i = 0; i < kPadded; i += 4) StoreFourSums(sums + i, tile + i);
  for (int r = 0; r < kRows; ++r) {
    std::memcpy(block.sums + (row + r) * block.outputs + output, tile + r * kOutputs,
                kOutputs * sizeof(int32_t));
  }
}

// Multiplies a tile's rows with n_outputs outputs. kAhead: and prefetches the next n_outputs.
template <class Dots, int kRows, bool kAhead>
void SumRows(const SumsBlock& block, int64_t row, int64_t output, int64_t n_outputs) {
  // Eight sums for products of 16 bits, twelve for those of bytes: AVX2 has sixteen registers.
  constexpr int kOutputs = kRows == 1                          ? 8
                           : kRows == 2                        ? 4
                           : kRows == 3 && Dots::kTileRows > 4 ? 4
                                                               : 2;
  static_assert(kTileOutputs % kOutputs == 0);
  for (const int64_t end = output + n_outputs; output < end; output += kOutputs) {
    const int8_t* const ahead = block.weights + (output + n_outputs) * block.stride;
    SumTile<Dots, kRows, kOutputs, kAhead>(block, row, output, ahead);
  }
}

template <class Dots>
void SumBlock(const SumsBlock& block) {
  constexpr int kMost = Dots::kTileRows, kFive = std::min(5, kMost), kSix = std::min(6, kMost);
  constexpr void (*kSumRows[][2])(const SumsBlock&, int64_t, int64_t, int64_t) = {
      {SumRows<Dots, 1, false>, SumRows<Dots, 1, true>},
      {SumRows<Dots, 2, false>, SumRows<Dots, 2, true>},
      {SumRows<Dots, 3, false>, SumRows<Dots, 3, true>},
      {SumRows<Dots, 4, false>, SumRows<Dots, 4, true>},
      {SumRows<Dots, kFive, false>, SumRows<Dots, kFive, true>},
      {SumRows<Dots, kSix, false>, SumRows<Dots, kSix, true>}};
  const int64_t group =
      std::max(kGroupBytes / block.stride / kTileOutputs, int64_t{1}) * kTileOutputs;
  for (int64_t output = 0; output < block.outputs; output += group) {
    const int64_t n_outputs = std::min(group, block.outputs - output);
    ForEachTile<kMost>(block.n, [&](int64_t tile, int64_t row, int64_t n_rows) {
      kSumRows[n_rows - 1][tile == 0](block, row, output, n_outputs);
    });
  }
}

RowFormat Format() {
#if HWY_TARGET == HWY_AVX2
  if (HasAvxVnni()) return {RowFormat::kUnsigned, VnniDots::Inputs(), "AVX-VNNI"};
  return {RowFormat::kSigned, SignDots::Inputs(), "AVX2"};
#else
#if HWY_TARGET == HWY_NEON
  if (HasNeonDotProducts()) return {RowFormat::kSigned, NeonDots::Inputs(), "NEON dot products"};
#endif
  return {RowFormat::kWords, WordDots::Inputs(), "products of 16 bits"};
#endif
}

void Sums([[maybe_unused]] const RowFormat& format, const SumsBlock& block) {
#if HWY_TARGET == HWY_AVX2
  if (format.elements == RowFormat::kUnsigned) return SumBlock<VnniDots>(block);
  SumBlock<SignDots>(block);
#else
#if HWY_TARGET == HWY_NEON
  if (format.elements == RowFormat::kSigned) return SumBlock<NeonDots>(block);
#endif
  SumBlock<WordDots>(block);
#endif
}

// to[0, stride) = x[0, in) and zeros.
void WidenRow(const int8_t* x, int64_t in, int16_t* to, int64_t stride) {
  const hn::ScalableTag<int16_t> d16;
  const hn::Rebind<int8_t, decltype(d16)> d8;
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

HWY_EXPORT(PanelColumns);
HWY_EXPORT(Panel);
HWY_EXPORT(Format);
HWY_EXPORT(Sums);
HWY_EXPORT(WidenRow);

// Packs to `to` [panels, in, columns].
template <class T>
void Pack(const StackedWeights& weights, int64_t columns, T* to) {
  std::vector<T> row(static_cast<size_t>(weights.in));
  for (int64_t o = 0; o < weights.out; ++o) {
    CopyRow(weights, o, row.data());
    T* panel = to + o / columns * columns * weights.in + o % columns;
    for (int64_t i = 0; i < weights.in; ++i) panel[i * columns] = row[i];
  }
}

// A task has some rows and some outputs: as many as keep the sums in a core's first cache and the
// weights in its second.
constexpr int64_t kBlockRows = 12, kMaxBlockOutputs = 64, kMaxBlockBytes = 128 << 10;

int64_t RoundUp(int64_t n, int64_t multiple) { return (n + multiple - 1) / multiple * multiple; }

// The weights [outputs, stride] and their number of outputs before they were padded.
struct SimdWeights {
  int64_t in, out, stride;
  RowFormat format;
  std::shared_ptr<std::byte> memory;

  void Apply(DeviceContext& context, const std::byte* x, int64_t n, const cpu::UseSums& use) const;
  // x [n, in] as the kernel reads it: x itself or a copy.
  const std::byte* Rows(DeviceContext& context, ScratchScope& scratch, const std::byte* x,
                        int64_t n) const;
  int64_t row_bytes() const { return format.elements == RowFormat::kWords ? 2 * stride : stride; }
};

const std::byte* SimdWeights::Rows(DeviceContext& context, ScratchScope& scratch,
                                   const std::byte* x, int64_t n) const {
  if (format.elements != RowFormat::kWords && stride == in) return x;
  auto* const rows = scratch.Allocate<std::byte>(static_cast<size_t>(n * row_bytes()));
  ParallelRows(context, n, in, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      std::byte* const to = rows + row * row_bytes();
      if (format.elements == RowFormat::kWords) {
        HWY_DYNAMIC_DISPATCH(WidenRow)
        (reinterpret_cast<const int8_t*>(x + row * in), in, reinterpret_cast<int16_t*>(to), stride);
      } else {
        std::fill(std::copy_n(x + row * in, in, to), to + stride, std::byte{0});
      }
    }
  });
  return rows;
}

void SimdWeights::Apply(DeviceContext& context, const std::byte* x, int64_t n,
                        const cpu::UseSums& use) const {
  ScratchScope scratch(context);
  const std::byte* const rows = Rows(context, scratch, x, n);
  const int64_t most = n <= kBlockRows ? kMaxBlockOutputs / 2 : kMaxBlockOutputs;
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
          .x = rows + row * row_bytes(),
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

Product MakeSimdProduct(const StackedWeights& weights) {
  const int64_t columns = HWY_DYNAMIC_DISPATCH(PanelColumns)();
  const int64_t n_panels = (weights.out + columns - 1) / columns;
  const size_t bytes = static_cast<size_t>(n_panels * columns) * weights.row_bytes();
  const std::shared_ptr<std::byte> memory = WeightMemory(bytes);
  std::memset(memory.get(), 0, bytes);  // the last panel's missing columns
  const TensorView packed = {memory.get(), weights.compute, {n_panels, weights.in, columns}};
  if (weights.compute == DType::kF32) {
    Pack(weights, columns, packed.as<float>());
  } else {
    Pack(weights, columns, packed.as<BF16>());
  }
  const auto apply = [memory, packed](DeviceContext& context, TensorView x, TensorView y,
                                      bool accumulate) {
    ScratchScope scratch(context);
    if (x.dtype == DType::kBF16) {
      const int64_t in = x.shape[1];
      auto* const wide = scratch.Allocate<float>(static_cast<size_t>(x.shape.elements()));
      ParallelRows(context, x.shape[0], in, [&](int64_t begin, int64_t end) {
        std::transform(x.as<BF16>() + begin * in, x.as<BF16>() + end * in, wide + begin * in,
                       [](BF16 v) { return ToFloat(v); });
      });
      x.data = wide;
    }
    const int64_t panel_work = x.shape[0] * packed.shape[1] * packed.shape[2];
    ParallelRows(context, packed.shape[0], panel_work, [&](int64_t begin, int64_t end) {
      for (int64_t p = begin; p < end; ++p) {
        HWY_DYNAMIC_DISPATCH(Panel)(x, packed, y, p, accumulate);
      }
    });
  };
  return {bytes, apply};
}

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
  return {.bytes = bytes,
          .offset = format.elements == RowFormat::kUnsigned ? 128 : 0,
          .kernel = format.kernel,
          .apply = [packed](DeviceContext& context, const std::byte* x, int64_t n,
                            const UseSums& use) { packed->Apply(context, x, n, use); }};
}

}  // namespace cpu
}  // namespace ovq::kernels
#endif  // HWY_ONCE
