// PrepareHeads, in place over x [n_rows, n_heads, d], |x| = sqrt(sum(x^2) + 1e-6), i < d/2, at
// a = position theta^(-2i/d), the result of every line in float32:
//   u = scale[head] x / |x|
//   x[i], x[i + d/2] = u[i] cos a - u[i + d/2] sin a, u[i + d/2] cos a + u[i] sin a
// Embed: y[row] = table[ids[row]], table [vocab, width], y [n_rows, width].
#include <cmath>
#include <numbers>
#include <vector>

#include "kernels/ops/ops_device.h"
#include "kernels/ops/parallel_rows.h"

namespace ovq::cpu {
namespace {

// table [cos | sin], of d/2 angles each.
void FillTable(const RopeTable& rope, int64_t position, float* table) {
  const int half = rope.head_dim() / 2;
  for (int i = 0; i < half; ++i) {
    // The conversion sign-extends, so that negative positions turn backwards.
    const double angle =
        HalfTurns(static_cast<Phase>(position) * rope.frequencies()[i]) * std::numbers::pi;
    table[i] = static_cast<float>(std::cos(angle));
    table[half + i] = static_cast<float>(std::sin(angle));
  }
}

void RotateHead(const float* cosine, const float* sine, int half, float* x) {
  for (int i = 0; i < half; ++i) {
    const float a = x[i];
    const float b = x[i + half];
    x[i] = a * cosine[i] - b * sine[i];
    x[i + half] = b * cosine[i] + a * sine[i];
  }
}

}  // namespace

void PrepareHeads(DeviceContext& context, const HeadPrep& prep) {
  const int d = prep.queries.head_dim;
  const int64_t n_heads = int64_t{prep.queries.n_heads} + prep.keys.n_heads;
  // A sine and cosine take as long as some 40 multiply-adds.
  const int64_t row_work = 4 * n_heads * d + (prep.rope ? 20 * d : 0);
  ParallelRows(context, prep.queries.n_rows, row_work, [&](int64_t begin, int64_t end) {
    std::vector<float> table(d);  // of one row, for all heads
    for (int64_t row = begin; row < end; ++row) {
      if (prep.rope) FillTable(*prep.rope, prep.positions[row], table.data());
      const auto prepare = [&](const HeadRows& heads, const float* scale) {
        float* x = heads.data + row * heads.row_stride;
        for (int head = 0; head < heads.n_heads; ++head, x += d) {
          if (prep.unit_norm) UnitNorm(x, d, scale ? scale[head] : 1.0f);
          if (prep.rope) RotateHead(table.data(), table.data() + d / 2, d / 2, x);
          for (int i = 0; i < d && prep.round_to_bf16; ++i) x[i] = ToFloat(RoundToBF16(x[i]));
        }
      };
      prepare(prep.queries, prep.beta);
      prepare(prep.keys, nullptr);
    }
  });
}

void Embed(DeviceContext& context, TensorView table, std::span<const int32_t> ids, TensorView y) {
  const int64_t d = y.shape[1];
  ParallelRows(context, y.shape[0], d, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      float* to = y.as<float>() + row * d;
      for (int64_t i = 0; i < d; ++i) to[i] = FloatAt(table, ids[row] * d + i);
    }
  });
}

}  // namespace ovq::cpu
