// Gates of recurrent mixers on the CPU, for token t and head h; the norm for each group of a token:
// Decay        dt[t,h] = clamp(softplus(x[t,h] + bias[h])), decay[t,h] = e^(rate[h] dt[t,h]), or
//              decay[t,h] = e^(lower_bound / (1 + e^(rate[h] (x[t,h] + bias[h]))))
// Sigmoid      y[t,h] = scale / (1 + e^-(x[t,h] + bias[h]))
// NormAndGate  y = x / sqrt(mean(x^2) + eps) * weight * g(z), or g before the norm; x, y [n_tokens,
//              n_groups, width]
#include <algorithm>
#include <cmath>

#include "kernels/common/highway_targets.h"
#include "kernels/mixers/recurrent/gates.h"
#include "kernels/ops/parallel_rows.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/mixers/recurrent/gates_cpu.cc"
//
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
//
#include "kernels/ops/rows-inl.h"

HWY_BEFORE_NAMESPACE();
namespace ovq::kernels::HWY_NAMESPACE {
namespace {

// (1 + tanh(u)) / 2 = 1 / (1 + e^-2u)
HWY_INLINE V GeluTanh(V z) {
  const V cubic = hn::MulAdd(hn::Mul(hn::Set(d, 0.044715f), z), hn::Mul(z, z), z);
  return hn::Mul(z, Sigmoid(hn::Mul(hn::Set(d, 2 * 0.7978845608028654f), cubic)));
}

// r g(z) for n elements.
HWY_INLINE V Gated(GateKind kind, V r, const float* z, int64_t n) {
  if (kind == GateKind::kSilu) return hn::Mul(r, Silu(Load(z, n)));
  if (kind == GateKind::kSigmoid) return hn::Mul(r, Sigmoid(Load(z, n)));
  if (kind == GateKind::kGeluTanh) return hn::Mul(r, GeluTanh(Load(z, n)));
  return r;
}

template <class T>
HWY_INLINE void NormGroupTo(const GatedNorm& norm, float* x, const float* z, const float* weight,
                            T* y) {
  const int64_t n = norm.width;
  const GateKind after = norm.gates_input ? GateKind::kNone : norm.gate;
  if (norm.gates_input) {
    ForEachVector(n, [&](int64_t i, int64_t m)
                         HWY_ATTR { Store(Gated(norm.gate, Load(x + i, m), z + i, m), m, x + i); });
  }
  if (weight == nullptr) {
    ForEachVector(n, [&](int64_t i, int64_t m)
                         HWY_ATTR { Store(Gated(after, Load(x + i, m), z + i, m), m, y + i); });
    return;
  }
  const float mean = SumOfSquares(x, n) / static_cast<float>(n);
  const V factor = hn::Set(d, 1.0f / std::sqrt(mean + norm.eps));
  ForEachVector(n, [&](int64_t i, int64_t m) HWY_ATTR {
    const V unit = hn::Mul(hn::Mul(Load(x + i, m), factor), Load(weight + i, m));
    Store(Gated(after, unit, z + i, m), m, y + i);
  });
}

// Norms group `group`, counted over the groups of all tokens.
void NormGroup(const GatedNorm& norm, int64_t group) {
  const int64_t token = group / norm.n_groups, at = group * norm.width;
  const int64_t in_token = group % norm.n_groups * norm.width;
  const float* z = norm.z ? norm.z + token * norm.z_stride + in_token : nullptr;
  const float* weight = norm.weight ? norm.weight + (norm.shares_weight ? 0 : in_token) : nullptr;
  if (norm.y_dtype == DType::kF32) {
    return NormGroupTo(norm, norm.x + at, z, weight, static_cast<float*>(norm.y) + at);
  }
  NormGroupTo(norm, norm.x + at, z, weight, static_cast<BF16*>(norm.y) + at);
}

}  // namespace
}  // namespace ovq::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace ovq::kernels {
namespace {

HWY_EXPORT(NormGroup);

constexpr int64_t kExpWork = 8;      // approximate cost of an exponential, in multiply-adds
constexpr int64_t kScalarWork = 64;  // likewise, of an exponential and a logarithm of one number

// ln(1 + e^z), computed from e^-|z| alone, so it cannot overflow.
float Softplus(float z) { return std::max(z, 0.0f) + std::log1p(std::exp(-std::abs(z))); }

}  // namespace

namespace cpu {

void Decay(DeviceContext& context, const DecayGate& gate) {
  ParallelRows(context, gate.n_tokens, kScalarWork * gate.n_heads, [&](int64_t begin, int64_t end) {
    for (int64_t at = begin * gate.n_heads; at < end * gate.n_heads; ++at) {
      const int64_t token = at / gate.n_heads, head = at % gate.n_heads;
      const float z = gate.x[token * gate.x_stride + head] + gate.bias[head];
      if (gate.lower_bound < 0) {
        gate.decay[at] = std::exp(gate.lower_bound / (1.0f + std::exp(gate.rate[head] * z)));
        continue;
      }
      const float dt = std::min(std::max(Softplus(z), gate.min_dt), gate.max_dt);
      gate.decay[at] = std::exp(gate.rate[head] * dt);
      gate.dt[at] = dt;
    }
  });
}

void Sigmoid(DeviceContext& context, const SigmoidGate& gate) {
  ParallelRows(context, gate.n_tokens, kScalarWork * gate.n_heads, [&](int64_t begin, int64_t end) {
    for (int64_t at = begin * gate.n_heads; at < end * gate.n_heads; ++at) {
      const int64_t token = at / gate.n_heads, head = at % gate.n_heads;
      const float z = gate.x[token * gate.x_stride + head] + (gate.bias ? gate.bias[head] : 0.0f);
      gate.y[at] = gate.scale / (1.0f + std::exp(-z));
    }
  });
}

void NormAndGate(DeviceContext& context, const GatedNorm& norm) {
  const int64_t work = norm.width * (norm.gate == GateKind::kNone ? 4 : 4 + kExpWork);
  ParallelRows(context, norm.n_tokens * norm.n_groups, work, [&](int64_t begin, int64_t end) {
    for (int64_t group = begin; group < end; ++group) HWY_DYNAMIC_DISPATCH(NormGroup)(norm, group);
  });
}

}  // namespace cpu
}  // namespace ovq::kernels
#endif  // HWY_ONCE
