#include "kernels/mixers/recurrent/gates.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

namespace ovq::kernels {

Buffer LoadDecayRates(const MixerSpec& spec, std::string_view leaf, int n_heads, int channels) {
  std::vector<float> rates;
  // Keeps rates finite, so that rate * dt is 0 for dt = 0.
  constexpr double kHighest = std::numeric_limits<float>::max();
  for (const float log_rate : spec.weights.HostFloats(leaf, {n_heads})) {
    const double rate = -std::min(std::exp(static_cast<double>(log_rate)), kHighest);
    rates.insert(rates.end(), static_cast<size_t>(channels), static_cast<float>(rate));
  }
  if (!spec.weights.status().ok()) return {};
  return spec.context.Upload(rates);
}

void Decay(DeviceContext& context, const DecayGate& gate) {
  Check(gate.min_dt >= 0 && gate.min_dt <= gate.max_dt, "Decay: bounds of a step");
  Check(gate.lower_bound <= 0, "Decay: lower bound of the logarithm");
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
