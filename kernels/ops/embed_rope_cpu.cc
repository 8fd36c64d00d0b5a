// Rope, in place over x [n_rows, n_heads, d], i < d/2, at a = position theta^(-2i/d):
//   x[i], x[i + d/2] = x[i] cos a - x[i + d/2] sin a, x[i + d/2] cos a + x[i] sin a
// Embed: y[row] = table[ids[row]], table [vocab, width], y [n_rows, width].
#include <cmath>
#include <cstring>
#include <numbers>
#include <vector>

#include "kernels/ops/ops_device.h"
#include "kernels/ops/parallel_rows.h"

namespace ovq::cpu {
namespace {

void RotateHead(const float* cosine, const float* sine, int half, float* data) {
  for (int i = 0; i < half; ++i) {
    const float a = data[i];
    const float b = data[i + half];
    data[i] = a * cosine[i] - b * sine[i];
    data[i + half] = b * cosine[i] + a * sine[i];
  }
}

void EmbedRow(const TensorView& table, int64_t from, int64_t d, float* y) {
  switch (table.dtype) {
    case DType::kF32:
      std::memcpy(y, table.as<float>() + from, static_cast<size_t>(d) * sizeof(float));
      return;
    case DType::kBF16:
      for (int64_t i = 0; i < d; ++i) y[i] = ToFloat(table.as<BF16>()[from + i]);
      return;
    default:
      for (int64_t i = 0; i < d; ++i) y[i] = HalfToFloat(table.as<uint16_t>()[from + i]);
  }
}

}  // namespace

void Rope(DeviceContext& context, const HeadRows& x, std::span<const int64_t> positions,
          const RopeTable& rope) {
  const int half = x.head_dim / 2;
  const Phase* frequency = rope.frequencies();
  // A sine and cosine take as long as some 40 multiply-adds.
  const int64_t row_work = half * (40 + 4 * int64_t{x.n_heads});
  ParallelRows(context, x.n_rows, row_work, [&](int64_t begin, int64_t end) {
    std::vector<float> table(x.head_dim);  // [cos | sin] of one row, for all heads
    for (int64_t row = begin; row < end; ++row) {
      for (int i = 0; i < half; ++i) {
        // The conversion sign-extends, so that negative positions turn backwards.
        const double angle =
            HalfTurns(static_cast<Phase>(positions[row]) * frequency[i]) * std::numbers::pi;
        table[i] = static_cast<float>(std::cos(angle));
        table[half + i] = static_cast<float>(std::sin(angle));
      }
      for (int head = 0; head < x.n_heads; ++head) {
        float* data = x.data + row * x.row_stride + int64_t{head} * x.head_dim;
        RotateHead(table.data(), table.data() + half, half, data);
      }
    }
  });
}

void Embed(DeviceContext& context, TensorView table, std::span<const int32_t> ids, TensorView y) {
  const int64_t d = y.shape[1];
  ParallelRows(context, y.shape[0], d, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      EmbedRow(table, ids[row] * d, d, y.as<float>() + row * d);
    }
  });
}

}  // namespace ovq::cpu
