// WeightType::kInt8: rows of x as bytes, exact sums by MakeOneDnnSums or MakeSimdSums, and
//   y[i][o] (+)= (sums[i][o] - offset sum_k values[o][k]) r(x_i) scales[o]
// Sums of an offset of 128 take a row's q(x) as the unsigned bytes q + 128, which VNNI and AMX
// multiply with int8 on every machine that has either; the contribution of the 128 to a sum depends
// on the weights alone. Others take q as int8, without an offset.
#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <memory>
#include <numeric>
#include <span>
#include <utility>
#include <vector>

#include "kernels/common/highway_targets.h"
#include "kernels/common/product_choices.h"
#include "kernels/ops/matmul_device.h"
#include "kernels/ops/parallel_rows.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/ops/matmul_int8_cpu.cc"
//
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
//
#include "kernels/ops/rows-inl.h"

HWY_BEFORE_NAMESPACE();
namespace ovq::kernels::HWY_NAMESPACE {
namespace {

// The largest absolute value; NaN or infinity if one occurs. Without the sign, floats are ordered
// like their bits, with infinity and then NaN above all numbers.
template <class T>
float LargestAbs(const T* x, int64_t n) {
  const hn::RebindToSigned<D> di;
  auto largest = hn::Zero(di);
  ForEachVector(n, [&](int64_t i, int64_t m) HWY_ATTR {
    largest = hn::Max(largest, hn::BitCast(di, hn::Abs(Load(x + i, m))));
  });
  HWY_ALIGN int32_t lanes[hn::MaxLanes(d)];
  hn::Store(largest, di, lanes);
  return std::bit_cast<float>(*std::max_element(lanes, lanes + Lanes()));
}

// bytes = q(x) + offset, which is 0 or 128; returns r(x).
template <class T>
float RoundTypedRow(const T* x, int64_t n, int offset, uint8_t* bytes) {
  const float largest = LargestAbs(x, n);
  if (!std::isfinite(largest) || largest < 0x1p-100f) {
    std::fill_n(bytes, n, static_cast<uint8_t>(offset));
    return std::isfinite(largest) ? 0 : std::numeric_limits<float>::quiet_NaN();
  }
  const V factor = hn::Set(d, 127 / largest);
  const hn::Rebind<int8_t, D> di8;
  const hn::Rebind<uint8_t, D> du8;
  const auto flip = hn::Set(du8, static_cast<uint8_t>(offset));  // adds 128 to a byte, or nothing
  ForEachVector(n, [&](int64_t i, int64_t m) HWY_ATTR {
    const auto q = hn::NearestInt(hn::Mul(Load(x + i, m), factor));
    const auto eight_bits = hn::Xor(hn::BitCast(du8, hn::DemoteTo(di8, q)), flip);
    if (m == Lanes()) return hn::StoreU(eight_bits, du8, bytes + i);
    uint8_t lanes[hn::MaxLanes(d)];
    hn::StoreU(eight_bits, du8, lanes);
    std::memcpy(bytes + i, lanes, static_cast<size_t>(m));
  });
  return largest / 127;
}
// Rounds row `row` of x [n, in] to bytes; returns its r(x).
float RoundRow(TensorView x, int64_t row, int offset, uint8_t* bytes) {
  const int64_t in = x.shape[1];
  if (x.dtype == DType::kF32) return RoundTypedRow(x.as<float>() + row * in, in, offset, bytes);
  return RoundTypedRow(x.as<BF16>() + row * in, in, offset, bytes);
}

// to[i] (+)= (sums[i] - offsets[i]) row_scale scales[i]: some columns of a row of y.
void FinishRow(std::span<const int32_t> sums, const int32_t* offsets, const float* scales,
               float row_scale, float* to, bool accumulate) {
  const hn::RebindToSigned<D> di;
  const auto n = static_cast<int64_t>(sums.size());
  int64_t i = 0;
  for (; i + Lanes() <= n; i += Lanes()) {
    const auto sum = hn::Sub(hn::LoadU(di, sums.data() + i), hn::LoadU(di, offsets + i));
    const V scaled = hn::Mul(hn::ConvertTo(d, sum), hn::Set(d, row_scale));
    const V product = hn::Mul(scaled, hn::LoadU(d, scales + i));
    hn::StoreU(accumulate ? hn::Add(hn::LoadU(d, to + i), product) : product, d, to + i);
  }
  for (; i < n; ++i) {
    const int32_t sum = sums[static_cast<size_t>(i)] - offsets[i];
    const float product = static_cast<float>(sum) * row_scale * scales[i];
    to[i] = accumulate ? to[i] + product : product;
  }
}

}  // namespace
}  // namespace ovq::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace ovq::kernels {
namespace {

HWY_EXPORT(RoundRow);
HWY_EXPORT(FinishRow);

constexpr int64_t kRowsAtOnce = 512;  // rows in one call of the sums, oneDNN's maximum

struct Int8Product {
  int64_t in, out;
  std::vector<float> scales;
  std::vector<int32_t> offsets;  // what sums.offset adds to the sums of a row
  cpu::Int8Sums sums;

  void Apply(DeviceContext& context, TensorView x, TensorView y, bool accumulate) const;
};

void Int8Product::Apply(DeviceContext& context, TensorView x, TensorView y, bool accumulate) const {
  const int64_t at_once = std::min(kRowsAtOnce, x.shape[0]);
  ScratchScope scratch(context);
  auto* bytes = scratch.Allocate<uint8_t>(static_cast<size_t>(at_once * in));
  auto* row_scales = scratch.Allocate<float>(static_cast<size_t>(at_once));
  for (int64_t first = 0; first < x.shape[0]; first += at_once) {
    const int64_t n = std::min(at_once, x.shape[0] - first);
    ParallelRows(context, n, 2 * in, [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        row_scales[row] =
            HWY_DYNAMIC_DISPATCH(RoundRow)(x, first + row, sums.offset, bytes + row * in);
      }
    });
    sums.apply(context, reinterpret_cast<std::byte*>(bytes), n,
               [&](int64_t row, int64_t o, std::span<const int32_t> part) {
                 HWY_DYNAMIC_DISPATCH(FinishRow)
                 (part, offsets.data() + o, scales.data() + o, row_scales[row],
                  y.as<float>() + (first + row) * out + o, accumulate);
               });
  }
}

}  // namespace

Int8Weights RoundToInt8(const StackedWeights& weights) {
  Int8Weights rounded{weights.in, weights.out, {}, {}};
  const StackedWeights in_float = {weights.parts, weights.in, weights.out, DType::kF32};
  std::vector<float> row(static_cast<size_t>(weights.in));
  std::vector<uint8_t> bytes(row.size());
  rounded.values.reserve(row.size() * static_cast<size_t>(weights.out));
  for (int64_t o = 0; o < weights.out; ++o) {
    CopyRow(in_float, o, row.data());
    const TensorView view = {row.data(), DType::kF32, {1, weights.in}};
    rounded.scales.push_back(HWY_DYNAMIC_DISPATCH(RoundRow)(view, 0, 0, bytes.data()));
    for (uint8_t byte : bytes) rounded.values.push_back(static_cast<int8_t>(byte));
  }
  return rounded;
}

namespace cpu {

Product WithSums(const Int8Weights& weights, Int8Sums sums) {
  const auto product = std::make_shared<Int8Product>(Int8Product{.in = weights.in,
                                                                 .out = weights.out,
                                                                 .scales = weights.scales,
                                                                 .offsets = {},
                                                                 .sums = std::move(sums)});
  for (int64_t o = 0; o < weights.out; ++o) {
    const int8_t* row = weights.values.data() + o * weights.in;
    product->offsets.push_back(product->sums.offset *
                               std::accumulate(row, row + weights.in, int32_t{0}));
  }
  const size_t per_output = sizeof(float) + sizeof(int32_t);
  return {product->sums.bytes + static_cast<size_t>(weights.out) * per_output,
          [product](DeviceContext& context, TensorView x, TensorView y, bool accumulate) {
            product->Apply(context, x, y, accumulate);
          }};
}

Product MakeInt8Product(DeviceContext& context, const StackedWeights& weights) {
  const Int8Weights rounded = RoundToInt8(weights);
  std::optional<Int8Sums> fast = MakeOneDnnSums(context, rounded);
  Int8Sums sums = fast ? *std::move(fast) : MakeSimdSums(rounded);
  NoteProduct({weights.in, weights.out, "int8", fast ? "oneDNN" : "own", sums.kernel});
  return WithSums(rounded, std::move(sums));
}

}  // namespace cpu
}  // namespace ovq::kernels
#endif  // HWY_ONCE
