// RopeTable, and PrepareHeads on ref and cpu, over q [n_rows, n_heads, d] and k [n_rows,
// n_kv_heads, d]:
//   q = bf16(rope(beta[head] q / |q|)), k = bf16(rope(k / |k|)), |x| = sqrt(sum(x^2) + 1e-6)
#include <cmath>
#include <numbers>
#include <vector>

#include "base/check.h"
#include "kernels/ops/ops_device.h"
#include "kernels/ops/parallel_rows.h"

namespace ovq {
namespace {

// theta^(-2i / head_dim) radians a position.
Phase Frequency(double theta, int i, int head_dim) {
  const long double exponent = -2.0L * i / head_dim;
  const long double turns =
      std::pow(static_cast<long double>(theta), exponent) / (2 * std::numbers::pi_v<long double>);
  return static_cast<Phase>(std::ldexp(turns, 128));
}

void RoundToBF16Values(const DeviceContext& context, const HeadRows& x) {
  const int64_t width = int64_t{x.n_heads} * x.head_dim;
  ParallelRows(context, x.n_rows, width, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      float* data = x.data + row * x.row_stride;
      for (int64_t i = 0; i < width; ++i) data[i] = ToFloat(RoundToBF16(data[i]));
    }
  });
}

}  // namespace

RopeTable::RopeTable(DeviceContext& context, double theta, int head_dim)
    : theta_(theta), head_dim_(head_dim) {
  Check(head_dim > 0 && head_dim % 2 == 0, "RopeTable: head_dim is even");
  Check(theta >= 1, "RopeTable: theta is at least 1");
  std::vector<Phase> frequencies(static_cast<size_t>(head_dim / 2));
  for (int i = 0; i < head_dim / 2; ++i) frequencies[i] = Frequency(theta, i, head_dim);
  frequencies_ = context.Upload(frequencies.data(), frequencies.size() * sizeof(Phase));
}

void PrepareHeadsOnHost(DeviceContext& context, const HeadPrep& prep) {
  UnitNorm(context, prep.queries, prep.beta);
  UnitNorm(context, prep.keys, nullptr);
  if (prep.rope != nullptr) {
    Rope(context, prep.queries, prep.positions, *prep.rope);
    Rope(context, prep.keys, prep.positions, *prep.rope);
  }
  if (prep.round_to_bf16) {
    RoundToBF16Values(context, prep.queries);
    RoundToBF16Values(context, prep.keys);
  }
}

}  // namespace ovq
