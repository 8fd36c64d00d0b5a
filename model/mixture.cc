#include "model/mixture.h"

#include <vector>

#include "base/check.h"

namespace ovq::model {

using kernels::DType;
using kernels::TensorView;

Mixture::Mixture(kernels::WeightReader& reader, const MixtureSpec& spec, FeedForwardKind kind,
                 int64_t d_model, float scale)
    : spec_(spec), kind_(kind) {
  const int n_experts = spec.router.n_experts;
  std::vector<kernels::WeightPart> router = {{"mlp.router.weight", n_experts}};
  if (spec.gate) router.push_back({"mlp.shared_gate.weight", 1});
  router_ = reader.PlainProduct(router, d_model);
  if (spec.router_bias) router_bias_ = reader.Floats("mlp.router.bias", {n_experts});
  int64_t d_expert = d_model;
  if (spec.latent_width > 0) {
    Check(!spec.gate, "a mixture in a latent space has no gate");
    d_expert = spec.latent_width;
    latent_in_ = reader.Product({{"mlp.latent_in.weight", d_expert}}, d_model);
    latent_out_ = reader.Product({{"mlp.latent_out.weight", d_model}}, d_expert, scale);
    if (spec.latent_bias) {
      latent_in_bias_ = reader.Floats("mlp.latent_in.bias", {d_expert});
      latent_out_bias_ = reader.Floats({{"mlp.latent_out.bias", d_model}}, scale);
    }
  } else {
    spec_.router.scale *= scale;
  }
  std::vector<kernels::WeightPart> inner = {{"up_proj.weight", spec.width}};
  if (kind == FeedForwardKind::kGatedSilu) {
    inner.insert(inner.begin(), {"gate_proj.weight", spec.width});
  }
  inner_ = reader.Experts("mlp.experts.", spec.router, inner, d_expert);
  const kernels::WeightPart outer = {"down_proj.weight", d_expert};
  outer_ = reader.Experts("mlp.experts.", spec.router, {&outer, 1}, spec.width);
}

void Mixture::Forward(kernels::DeviceContext& context, const kernels::ProductRows& rows,
                      TensorView y, bool adds, const float* shared) const {
  const int64_t n = y.shape[0];
  kernels::ScratchScope scope(context);
  const TensorView logits = scope.Tensor(DType::kF32, {n, router_.out()});
  router_.Apply(context, rows, logits);
  const kernels::Routes routes(scope, spec_.router, n);
  kernels::Route(context, spec_.router, router_bias_.as<float>(), logits, routes);
  if (spec_.latent_width == 0) {
    const float* const gates = logits.as<float>() + spec_.router.n_experts;
    return ForwardExperts(context, routes, rows.x,
                          {.y = {},
                           .h = y,
                           .accumulate = adds,
                           .shared = shared,
                           .gate = shared == nullptr ? nullptr : gates,
                           .gate_stride = router_.out()});
  }
  const TensorView wide = scope.Tensor(DType::kF32, {n, spec_.latent_width});
  const TensorView latent = scope.Tensor(rows.x.dtype, wide.shape);
  const auto add_bias = [&](TensorView to, const kernels::Buffer& bias) {
    if (!spec_.latent_bias) return;
    kernels::AddBias(context, to, {bias.as<void>(), DType::kF32, {to.shape[1]}}, 1);
  };
  latent_in_.Apply(context, rows.x, wide);
  add_bias(wide, latent_in_bias_);
  kernels::Copy(context, wide, latent);
  ForwardExperts(context, routes, latent, {.y = {}, .h = wide, .accumulate = false});
  kernels::Copy(context, wide, latent);
  latent_out_.Apply(context, latent, y, adds);
  add_bias(y, latent_out_bias_);
}

void Mixture::ForwardExperts(kernels::DeviceContext& context, const kernels::Routes& routes,
                             TensorView x, kernels::ExpertSum sum) const {
  const int64_t n = routes.n_places(), d_expert = x.shape[1];
  kernels::ScratchScope scope(context);
  const TensorView active = scope.Tensor(x.dtype, {n, spec_.width});
  {
    kernels::ScratchScope of_inner(context);
    const TensorView placed = of_inner.Tensor(x.dtype, {n, d_expert});
    kernels::Embed(context, x, {routes.rows, static_cast<size_t>(n)}, placed);
    const TensorView inner = of_inner.Tensor(DType::kF32, {n, inner_.out()});
    inner_.Apply(context, routes, placed, inner);
    if (kind_ == FeedForwardKind::kGatedSilu) {
      kernels::SwiGlu(context, inner, active);
    } else {
      kernels::SquaredRelu(context, inner, active);
    }
  }
  sum.y = scope.Tensor(DType::kF32, {n, d_expert});
  outer_.Apply(context, routes, active, sum.y);
  kernels::SumExperts(context, routes, sum);
}

}  // namespace ovq::model
