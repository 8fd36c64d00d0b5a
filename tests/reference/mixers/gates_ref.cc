// The reference of the gates of recurrent mixers (gates.h), in double.
#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/mixers/recurrent/gates.h"
#include "tests/reference/reference_of.h"

namespace ovq::kernels::ref {
namespace {

double EvaluateGate(GateKind kind, double z) {
  switch (kind) {
    case GateKind::kNone:
      return 1;
    case GateKind::kSilu:
      return z / (1 + std::exp(-z));
    case GateKind::kSigmoid:
      return 1 / (1 + std::exp(-z));
    case GateKind::kGeluTanh:
      return 0.5 * z * (1 + std::tanh(0.7978845608028654 * (z + 0.044715 * z * z * z)));
  }
  return 0;
}

void NormGroup(const GatedNorm& norm, int64_t token, int group) {
  const int64_t at = (token * norm.n_groups + group) * norm.width;
  std::vector<double> gates, values;
  double squares = 0;
  for (int64_t i = 0; i < norm.width; ++i) {
    const int64_t of_z = token * norm.z_stride + group * norm.width + i;
    gates.push_back(EvaluateGate(norm.gate, norm.z ? norm.z[of_z] : 0));
    values.push_back(norm.x[at + i] * (norm.gates_input ? gates.back() : 1));
    squares += values.back() * values.back();
  }
  const double rms = std::sqrt(squares / static_cast<double>(norm.width) + norm.eps);
  for (int64_t i = 0; i < norm.width; ++i) {
    double y = values[i] * (norm.gates_input ? 1 : gates[i]);
    if (norm.weight) y = y / rms * norm.weight[i + (norm.shares_weight ? 0 : group * norm.width)];
    if (norm.y_dtype == DType::kF32) {
      static_cast<float*>(norm.y)[at + i] = static_cast<float>(y);
    } else {
      static_cast<BF16*>(norm.y)[at + i] = RoundToBF16(static_cast<float>(y));
    }
  }
}

}  // namespace

void Decay(DeviceContext&, const DecayGate& gate) {
  for (int64_t token = 0; token < gate.n_tokens; ++token) {
    for (int head = 0; head < gate.n_heads; ++head) {
      const double z = double{gate.x[token * gate.x_stride + head]} + gate.bias[head];
      const int64_t at = token * gate.n_heads + head;
      if (gate.lower_bound < 0) {
        const double share = 1 / (1 + std::exp(gate.rate[head] * z));
        gate.decay[at] = static_cast<float>(std::exp(gate.lower_bound * share));
        continue;
      }
      const double softplus = z > 0 ? z + std::log1p(std::exp(-z)) : std::log1p(std::exp(z));
      const double dt = std::min<double>(std::max<double>(softplus, gate.min_dt), gate.max_dt);
      gate.decay[at] = static_cast<float>(std::exp(gate.rate[head] * dt));
      gate.dt[at] = static_cast<float>(dt);
    }
  }
}

void Sigmoid(DeviceContext&, const SigmoidGate& gate) {
  for (int64_t token = 0; token < gate.n_tokens; ++token) {
    for (int head = 0; head < gate.n_heads; ++head) {
      const double z =
          double{gate.x[token * gate.x_stride + head]} + (gate.bias ? gate.bias[head] : 0);
      gate.y[token * gate.n_heads + head] = static_cast<float>(gate.scale / (1 + std::exp(-z)));
    }
  }
}

void NormAndGate(DeviceContext&, const GatedNorm& norm) {
  for (int64_t token = 0; token < norm.n_tokens; ++token) {
    for (int group = 0; group < norm.n_groups; ++group) NormGroup(norm, token, group);
  }
}

const ReferenceOf<cpu::Decay> kDecay = Decay;
const ReferenceOf<cpu::Sigmoid> kSigmoid = Sigmoid;
const ReferenceOf<cpu::NormAndGate> kNormAndGate = NormAndGate;

}  // namespace ovq::kernels::ref
