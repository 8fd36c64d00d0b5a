// Mixture: the experts of a feed-forward (MixtureSpec), with their weights.
#pragma once

#include "kernels/mixers/weight_reader.h"
#include "kernels/ops/experts.h"
#include "model/config.h"

namespace ovq::model {

class Mixture {
 public:
  Mixture() = default;
  // Loads mlp.router, mlp.experts, and mlp.shared_gate and mlp.latent_* as far as the spec has
  // them. `scale` multiplies what the experts give. The reader keeps errors.
  Mixture(kernels::WeightReader& reader, const MixtureSpec& spec, FeedForwardKind kind,
          int64_t d_model, float scale);

  bool exists() const { return spec_.router.n_experts > 0; }
  bool has_gate() const { return spec_.gate; }
  // y += mixture(x), or y = mixture(x) without `adds`; x [n, d_model], y [n, d_model] F32. `shared`
  // [n, d_model], with a gate alone: what lies beside the experts, gated and added.
  void Forward(kernels::DeviceContext& context, const kernels::ProductRows& x,
               kernels::TensorView y, bool adds, const float* shared = nullptr) const;

 private:
  // y = the experts' weighted sum of x [n, width] in the compute dtype, the rest as for SumExperts.
  void ForwardExperts(kernels::DeviceContext& context, const kernels::Routes& routes,
                      kernels::TensorView x, kernels::ExpertSum sum) const;

  MixtureSpec spec_;
  FeedForwardKind kind_ = FeedForwardKind::kNone;
  kernels::Linear router_;                  // [n_experts, d_model], and a row for the gate
  kernels::Buffer router_bias_;             // [n_experts] float
  kernels::Linear latent_in_, latent_out_;  // [latent_width, d_model] and back, scale included
  kernels::Buffer latent_in_bias_, latent_out_bias_;  // float, likewise
  kernels::ExpertLinear inner_;  // gated: [2 width, d_model], gate first; else [width, d_model]
  kernels::ExpertLinear outer_;  // [d_model, width]
};

}  // namespace ovq::model
