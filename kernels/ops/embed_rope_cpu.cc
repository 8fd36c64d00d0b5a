#include <cmath>
#include <cstring>
#include <deque>
#include <numbers>
#include <utility>
#include <vector>

#include "kernels/ops/ops_device.h"
#include "kernels/ops/parallel_rows.h"

namespace ovq::cpu {
namespace {

// A frequency in turns a position, as a fraction of 2^128. The product with a position modulo 2^128
// is then the angle modulo one turn with no rounding at all: angles at any two positions differ by
// exactly the angle of their distance, and the frequency's own error (2^-64 relative) is all there
// is. A float64 product is wrong by 1e-4 radians at position 2^40 and meaningless after 2^53.
using Turns = unsigned __int128;

Turns TurnsPerPosition(double theta, int i, int head_dim) {
  const long double exponent = -2.0L * i / head_dim;
  const long double turns =
      std::pow(static_cast<long double>(theta), exponent) / (2 * std::numbers::pi_v<long double>);
  return static_cast<Turns>(std::ldexp(turns, 128));
}

// The table of one head size and theta, kept because a long double power costs 0.1 us and every
// layer asks again. A model has one or two.
const std::vector<Turns>& Frequencies(double theta, int head_dim) {
  struct Entry {
    double theta;
    int head_dim;
    std::vector<Turns> turns;
  };
  thread_local std::deque<Entry> entries;
  for (const Entry& entry : entries) {
    if (entry.theta == theta && entry.head_dim == head_dim) return entry.turns;
  }
  std::vector<Turns> turns(head_dim / 2);
  for (int i = 0; i < head_dim / 2; ++i) turns[i] = TurnsPerPosition(theta, i, head_dim);
  return entries.emplace_back(Entry{theta, head_dim, std::move(turns)}).turns;
}

// In [-pi, pi): the upper 64 bits as a signed fraction of a turn.
double Radians(Turns turns) {
  const auto upper = static_cast<int64_t>(static_cast<uint64_t>(turns >> 64));
  return static_cast<double>(upper) * (2 * std::numbers::pi * 0x1p-64);
}

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
          double theta) {
  const int half = x.head_dim / 2;
  const std::vector<Turns>& frequency = Frequencies(theta, x.head_dim);
  // A sine and cosine take as long as some 40 multiply-adds.
  const int64_t row_work = half * (40 + 4 * int64_t{x.n_heads});
  ParallelRows(context, x.n_rows, row_work, [&](int64_t begin, int64_t end) {
    std::vector<float> table(x.head_dim);  // [cos | sin] of one row, for all heads
    for (int64_t row = begin; row < end; ++row) {
      for (int i = 0; i < half; ++i) {
        // int64 to Turns sign-extends, so negative positions turn backwards.
        const double angle = Radians(static_cast<Turns>(positions[row]) * frequency[i]);
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
