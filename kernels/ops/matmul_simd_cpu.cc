// y[n, out] (+)= x[n, in] W^T, W [out, in], with Highway: MakeSimdProduct and MakeSimdSums.
#include <algorithm>
#include <cstring>
#include <memory>
#include <vector>

#include "kernels/common/highway_targets.h"
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

HWY_BEFORE_NAMESPACE();
namespace ovq::kernels::HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;
using D = hn::ScalableTag<float>;
using V = hn::Vec<D>;
constexpr D d;

using ovq::kernels::HWY_NAMESPACE::LoadWide;
HWY_INLINE V LoadWide(D, const int8_t* p) {
  const hn::Rebind<int8_t, D> d8;
  const hn::Rebind<int32_t, D> d32;
  return hn::ConvertTo(d, hn::PromoteTo(d32, hn::LoadU(d8, p)));
}

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

template <int kRows, class T>
HWY_INLINE void Tile(const PanelTask<T>& task, int64_t first_row) {
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  const int64_t in = task.in;
  const float* x = task.x + first_row * in;
  V sum[kRows][kPanelVectors];
  for (int r = 0; r < kRows; ++r) {
    for (int v = 0; v < kPanelVectors; ++v) sum[r][v] = hn::Zero(d);
  }
  for (int64_t i = 0; i < in; ++i) {
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

// Multiplies tiles of kRows rows, and the rest in smaller tiles.
template <int kRows, class T>
void Tiles(const PanelTask<T>& task, int64_t row) {
  for (; row + kRows <= task.n; row += kRows) Tile<kRows>(task, row);
  if constexpr (kRows > 1) Tiles<(kRows > 2 ? kRows - 2 : 1)>(task, row);
}

template <class T>
void MultiplyPanel(TensorView x, TensorView packed, TensorView y, int64_t panel, bool accumulate) {
  const int64_t in = x.shape[1], out = y.shape[1], columns = PanelColumns();
  Tiles<kRowTile>(PanelTask<T>{.x = x.as<float>(),
                               .n = x.shape[0],
                               .in = in,
                               .weights = packed.as<T>() + panel * in * columns,
                               .y = y.as<float>() + panel * columns,
                               .y_stride = out,
                               .columns = std::min(columns, out - panel * columns),
                               .accumulate = accumulate},
                  0);
}

// Multiplies one panel of packed [panels, in, columns] with x [n, in] F32.
void Panel(TensorView x, TensorView packed, TensorView y, int64_t panel, bool accumulate) {
  const auto run = packed.dtype == DType::kF32 ? MultiplyPanel<float> : MultiplyPanel<BF16>;
  run(x, packed, y, panel, accumulate);
}
// Panel for int8 weights, whatever dtype the view has.
void Int8Panel(TensorView x, TensorView packed, TensorView y, int64_t panel) {
  MultiplyPanel<int8_t>(x, packed, y, panel, /*accumulate=*/false);
}

}  // namespace
}  // namespace ovq::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace ovq::kernels {
namespace {

HWY_EXPORT(PanelColumns);
HWY_EXPORT(Panel);
HWY_EXPORT(Int8Panel);

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
      const auto elements = static_cast<size_t>(x.shape.elements());
      float* wide = scratch.Allocate<float>(elements);
      std::transform(x.as<BF16>(), x.as<BF16>() + elements, wide,
                     [](BF16 v) { return ToFloat(v); });
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
  constexpr int64_t kSegment = 512;  // inputs whose products add up exactly in float32
  const int64_t in = weights.in, out = weights.out;
  const int64_t columns = HWY_DYNAMIC_DISPATCH(PanelColumns)();
  const int64_t n_panels = (out + columns - 1) / columns;
  // [segments][panels][the segment's inputs][columns], zero in the last panel's missing columns
  const auto packed =
      std::make_shared<std::vector<int8_t>>(static_cast<size_t>(n_panels * columns * in));
  for (int64_t o = 0; o < out; ++o) {
    for (int64_t i = 0; i < in; ++i) {
      const int64_t begin = i / kSegment * kSegment, length = std::min(kSegment, in - begin);
      const int64_t panel = begin * n_panels * columns + o / columns * length * columns;
      (*packed)[panel + (i - begin) * columns + o % columns] = weights.values[o * in + i];
    }
  }
  const auto apply = [=](DeviceContext& context, const uint8_t* x, int64_t n, int32_t* sums) {
    ScratchScope scratch(context);
    float* wide = scratch.Allocate<float>(static_cast<size_t>(n * in));  // [segments][n][inputs]
    for (int64_t row = 0; row < n; ++row) {
      for (int64_t i = 0; i < in; ++i) {
        const int64_t begin = i / kSegment * kSegment, length = std::min(kSegment, in - begin);
        wide[begin * n + row * length + i - begin] = x[row * in + i];
      }
    }
    const TensorView part = scratch.Tensor(DType::kF32, {n, out});  // one segment's sums
    ParallelRows(context, n_panels, n * in * columns, [&](int64_t first, int64_t last) {
      for (int64_t p = first; p < last; ++p) {
        const int64_t end = std::min(out, (p + 1) * columns);
        for (int64_t begin = 0; begin < in; begin += kSegment) {
          const int64_t length = std::min(kSegment, in - begin);
          HWY_DYNAMIC_DISPATCH(Int8Panel)
          ({wide + begin * n, DType::kF32, {n, length}},
           {packed->data() + begin * n_panels * columns, DType::kI32, {n_panels, length, columns}},
           part, p);
          for (int64_t row = 0; row < n; ++row) {
            for (int64_t o = p * columns; o < end; ++o) {
              const auto sum = static_cast<int32_t>(part.as<float>()[row * out + o]);
              sums[row * out + o] = begin == 0 ? sum : sums[row * out + o] + sum;
            }
          }
        }
      }
    });
  };
  return {packed->size(), apply};
}

}  // namespace cpu
}  // namespace ovq::kernels
#endif  // HWY_ONCE
