// PrepareHeads, in place over x [n_rows, n_heads, d], the result of every line in float32:
//   u = norm(x) by HeadNorm;  x[i], x[j] = u[i] c - u[j] s, u[j] c + u[i] s for the pairs (i, j) of
//   the RopeSpec, c = amplitude cos a, s = amplitude sin a, a = position w
// GrowQueries: x[row] = (1 + scale ln(1 + floor((position + 1) / floor_tokens))) x[row]
// AddSinusoids: y[row] += scale [sin a | cos a], the angles of a table of halves
// Embed: y[row] = table[ids[row]], table [vocab, width], y [n_rows, width].
#include <cmath>
#include <numbers>
#include <vector>

#include "kernels/ops/ops_device.h"
#include "kernels/ops/parallel_rows.h"

namespace ovq::kernels::cpu {
namespace {

// Fills table [cos | sin], one angle per pair.
void FillTable(const RopePairs& rope, int64_t position, float* table) {
  for (int i = 0; i < rope.n; ++i) {
    // The conversion sign-extends, so that negative positions turn backwards.
    const double angle =
        HalfTurns(static_cast<Phase>(position) * rope.frequencies[i]) * std::numbers::pi;
    table[i] = static_cast<float>(rope.amplitude * std::cos(angle));
    table[rope.n + i] = static_cast<float>(rope.amplitude * std::sin(angle));
  }
  for (int i = 0; i < 2 * rope.n && rope.rounds_to_bf16; ++i) {
    table[i] = ToFloat(RoundToBF16(table[i]));
  }
}

// Rotates one head.
void RotateHead(const float* cosine, const float* sine, int n, int step, int distance, float* x) {
  for (int i = 0; i < n; ++i) {
    const float a = x[i * step];
    const float b = x[i * step + distance];
    x[i * step] = a * cosine[i] - b * sine[i];
    x[i * step + distance] = b * cosine[i] + a * sine[i];
  }
}

template <class T>
void CopyRow(const TensorView& table, int64_t from, int64_t n, T* to) {
  for (int64_t i = 0; i < n; ++i) to[i] = FromFloat<T>(FloatAt(table, from + i));
}

// The cost of a sine and cosine, in multiply-adds, roughly.
constexpr int64_t kAngleWork = 40;

}  // namespace

void PrepareHeads(DeviceContext& context, const HeadPrep& prep) {
  const int d = prep.queries.head_dim;
  const int64_t n_heads = int64_t{prep.queries.n_heads} + prep.keys.n_heads;
  const RopePairs rope = prep.rope ? RopePairs(*prep.rope) : RopePairs();
  const int64_t row_work = 4 * n_heads * d + (prep.rope ? kAngleWork * d / 2 : 0);
  ParallelRows(context, prep.queries.n_rows, row_work, [&](int64_t begin, int64_t end) {
    std::vector<float> table(d);  // one row's angles, for all heads
    for (int64_t row = begin; row < end; ++row) {
      if (prep.rope) FillTable(rope, prep.positions[row], table.data());
      const auto prepare = [&](const HeadRows& heads, const float* scale, const float* weights) {
        float* x = heads.data + row * heads.row_stride;
        for (int head = 0; head < heads.n_heads; ++head, x += d) {
          NormHead(prep.norm, x, d, scale ? scale[head] : 1.0f, weights, prep.eps);
          RotateHead(table.data(), table.data() + rope.n, rope.n, rope.step, rope.distance, x);
          for (int i = 0; i < d && prep.round_to_bf16; ++i) x[i] = ToFloat(RoundToBF16(x[i]));
        }
      };
      prepare(prep.queries, prep.beta, prep.query_norm);
      prepare(prep.keys, nullptr, prep.key_norm);
    }
  });
}

void GrowQueries(DeviceContext& context, const HeadRows& queries, const QueryGrowth& growth,
                 std::span<const int64_t> positions, bool round_to_bf16) {
  const int64_t width = int64_t{queries.n_heads} * queries.head_dim;
  ParallelRows(context, queries.n_rows, kAngleWork + width, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const auto n_floors = static_cast<double>(growth.n_floors(positions[row]));
      const auto factor = static_cast<float>(1 + growth.scale * std::log1p(n_floors));
      float* x = queries.data + row * queries.row_stride;
      for (int64_t i = 0; i < width; ++i) {
        x[i] *= factor;
        if (round_to_bf16) x[i] = ToFloat(RoundToBF16(x[i]));
      }
    }
  });
}

void AddSinusoids(DeviceContext& context, const RopeTable& table,
                  std::span<const int64_t> positions, float scale, TensorView y) {
  const int n = table.n_pairs();
  ParallelRows(context, y.shape[0], kAngleWork * n, [&](int64_t begin, int64_t end) {
    std::vector<float> angles(2 * static_cast<size_t>(n));
    for (int64_t row = begin; row < end; ++row) {
      FillTable(RopePairs(table), positions[row], angles.data());
      float* to = y.as<float>() + row * 2 * n;
      for (int i = 0; i < n; ++i) {
        to[i] += scale * angles[n + i];
        to[n + i] += scale * angles[i];
      }
    }
  });
}

void Embed(DeviceContext& context, TensorView table, std::span<const int32_t> ids, TensorView y) {
  const int64_t d = y.shape[1];
  ParallelRows(context, y.shape[0], d, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const int64_t from = ids[row] * d;
      if (y.dtype == DType::kF32) {
        CopyRow(table, from, d, y.as<float>() + row * d);
      } else {
        CopyRow(table, from, d, y.as<BF16>() + row * d);
      }
    }
  });
}

}  // namespace ovq::kernels::cpu
