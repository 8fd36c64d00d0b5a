// PrepareHeads, in place over x [n_rows, n_heads, d], the result of every line in float32:
//   u = norm(x) by HeadNorm;  x[i], x[j] = u[i] cos a - u[j] sin a, u[j] cos a + u[i] sin a for the
//   pairs (i, j) of the RopeSpec, a = position w
// Embed: y[row] = table[ids[row]], table [vocab, width], y [n_rows, width].
#include <cmath>
#include <numbers>
#include <vector>

#include "kernels/ops/ops_device.h"
#include "kernels/ops/parallel_rows.h"

namespace ovq::cpu {
namespace {

// table [cos | sin], of an angle a pair each.
void FillTable(const RopeTable& rope, int64_t position, float* table) {
  const int n = rope.n_pairs();
  for (int i = 0; i < n; ++i) {
    // The conversion sign-extends, so that negative positions turn backwards.
    const double angle =
        HalfTurns(static_cast<Phase>(position) * rope.frequencies()[i]) * std::numbers::pi;
    table[i] = static_cast<float>(std::cos(angle));
    table[n + i] = static_cast<float>(std::sin(angle));
  }
  for (int i = 0; i < 2 * n && rope.spec().rounds_to_bf16; ++i) {
    table[i] = ToFloat(RoundToBF16(table[i]));
  }
}

// Pair i is channels i step, i step + distance.
void RotateHead(const float* cosine, const float* sine, int n, int step, int distance, float* x) {
  for (int i = 0; i < n; ++i) {
    const float a = x[i * step];
    const float b = x[i * step + distance];
    x[i * step] = a * cosine[i] - b * sine[i];
    x[i * step + distance] = b * cosine[i] + a * sine[i];
  }
}

void RotateHead(const RopeTable& rope, const float* table, float* x) {
  const int n = rope.n_pairs();
  if (rope.spec().layout == RopeSpec::Layout::kHalves) {
    RotateHead(table, table + n, n, 1, n, x);
  } else {
    RotateHead(table, table + n, n, 2, 1, x);
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
      const auto prepare = [&](const HeadRows& heads, const float* scale, const float* weights) {
        float* x = heads.data + row * heads.row_stride;
        for (int head = 0; head < heads.n_heads; ++head, x += d) {
          NormHead(prep.norm, x, d, scale ? scale[head] : 1.0f, weights);
          if (prep.rope) RotateHead(*prep.rope, table.data(), x);
          for (int i = 0; i < d && prep.round_to_bf16; ++i) x[i] = ToFloat(RoundToBF16(x[i]));
        }
      };
      prepare(prep.queries, prep.beta, prep.query_norm);
      prepare(prep.keys, nullptr, prep.key_norm);
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
