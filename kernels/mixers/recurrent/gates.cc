#include "kernels/mixers/recurrent/gates.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

namespace ovq::kernels {

Buffer LoadDecayRates(const MixerSpec& spec, std::string_view leaf, int n_heads) {
  std::vector<float> rates = spec.weights.HostFloats(leaf, {n_heads});
  // Keeps rates finite, so that rate * dt is 0 for dt = 0.
  constexpr double kHighest = std::numeric_limits<float>::max();
  for (float& rate : rates) {
    rate = static_cast<float>(-std::min(std::exp(static_cast<double>(rate)), kHighest));
  }
  if (!spec.weights.status().ok()) return {};
  return spec.context.Upload(rates.data(), rates.size() * sizeof(float));
}

void Decay(DeviceContext& context, const DecayGate& gate) {
  Check(gate.min_dt >= 0 && gate.min_dt <= gate.max_dt, "Decay: bounds of a step");
  Dispatch<cpu::Decay, cuda::Decay>(context, gate);
}

void Sigmoid(DeviceContext& context, const SigmoidGate& gate) {
  Dispatch<cpu::Sigmoid, cuda::Sigmoid>(context, gate);
}

void NormAndGate(DeviceContext& context, const GatedNorm& norm) {
  Check((norm.gate == GateKind::kNone) == (norm.z == nullptr), "NormAndGate: a gate has an input");
  Check(norm.y_dtype == DType::kF32 || norm.y_dtype == DType::kBF16, "NormAndGate: type of y");
  Dispatch<cpu::NormAndGate, cuda::NormAndGate>(context, norm);
}

}  // namespace ovq::kernels
