#include "kernels/mixers/recurrent/recurrent_mixer.h"

#include <utility>

namespace ovq::kernels {

RecurrentMixer::RecurrentMixer(RecurrentLayer layer) : layer_(std::move(layer)) {
  std::vector<StateField> fields = layer_.fields;
  if (layer_.conv.size > 1) fields.push_back(ShortConvField(layer_.conv.width, layer_.conv.size));
  state_.fixed = StateFields(std::move(fields));
}

void RecurrentMixer::SetInitial(int field, std::shared_ptr<const std::vector<std::byte>> bytes) {
  std::vector<StateField> fields = state_.fixed.list();
  fields[field].initial = std::move(bytes);
  state_.fixed = StateFields(std::move(fields));
}

void RecurrentMixer::Forward(const LayerArgs& args, const ProductRows& x, TensorView y) const {
  ScratchScope scope(args.context);
  const RecurrentInputs inputs = Project(args, x, scope);
  Advance(args, inputs);
  Output(args, inputs, y);
}

void RecurrentMixer::Load(const MixerSpec& spec) {
  compute_ = spec.compute_dtype;
  LoadOwn(spec);
  WeightReader& weights = spec.weights;
  const int64_t d_model = spec.state.d_model, heads = layer_.n_heads;
  std::vector<WeightPart> in = layer_.in;
  if (weights.rounds() && !layer_.gates_in.empty()) {
    gates_in_ = weights.PlainProduct(layer_.gates_in, d_model);
  } else {
    in.insert(in.end(), layer_.gates_in.begin(), layer_.gates_in.end());
  }
  in_ = weights.Product(in, d_model);
  out_ = weights.Product({{layer_.out.leaf, d_model}}, layer_.out.rows, spec.residual_scale);
  for (const RecurrentLayer::LowRank& of : layer_.low_rank) {
    const auto product = [&](const WeightPart& part, int64_t width) {
      return of.is_of_gate ? weights.PlainProduct({&part, 1}, width)
                           : weights.Product({part}, width);
    };
    low_rank_.push_back({product(of.down, d_model), product(of.up, of.down.rows),
                         of.bias.empty() ? Buffer() : weights.Floats(of.bias, {of.up.rows})});
  }
  if (!layer_.in_bias.empty()) {
    in_bias_ = weights.Floats(layer_.in_bias, {TotalRows(layer_.in) + TotalRows(layer_.gates_in)});
  }
  if (!layer_.out_bias.empty()) {
    out_bias_ = weights.Floats({{layer_.out_bias, d_model}}, spec.residual_scale);
  }
  const RecurrentLayer::Convolution& conv = layer_.conv;
  if (conv.size > 1) conv_ = LoadShortConv(spec, conv.filters, conv.size, conv.has_bias);
  if (layer_.unit_heads.n_heads > 0) {
    const std::vector<float> scales(static_cast<size_t>(layer_.unit_heads.n_heads),
                                    layer_.unit_heads.query_scale);
    query_scale_ = spec.context.Upload(scales);
  }
  if (layer_.decay) {
    const int n_channels = layer_.decay->n_channels;
    rate_ = LoadDecayRates(spec, "self_attn.A_log", layer_.n_heads, n_channels);
    dt_bias_ = weights.Floats("self_attn.dt_bias", {heads * n_channels});
  }
  for (const RecurrentLayer::SigmoidInput& gate : layer_.sigmoids) {
    sigmoid_biases_.push_back(gate.bias.empty() ? Buffer() : weights.Floats(gate.bias, {heads}));
  }
  const RecurrentLayer::Norm& norm = layer_.norm;
  if (norm.weight.empty()) return;
  norm_weight_ = weights.Floats(
      norm.weight, {norm.shares_weight ? layer_.out.rows / norm.n_groups : layer_.out.rows});
}

RecurrentInputs RecurrentMixer::Project(const LayerArgs& args, const ProductRows& x,
                                        ScratchScope& scope) const {
  const int64_t n_tokens = args.seqs.n_tokens(), stride = in_.out();
  const TensorView p = scope.Tensor(DType::kF32, {n_tokens, stride});
  in_.Apply(args.context, x, p);
  TensorView gates = p;
  if (gates_in_.bytes() > 0) {
    gates = scope.Tensor(DType::kF32, {n_tokens, gates_in_.out()});
    gates_in_.Apply(args.context, x.x, gates);  // the first product has computed x
  } else {
    gates.data = p.as<float>() + TotalRows(layer_.in);
  }
  if (in_bias_.bytes() > 0) {
    AddBias(args.context, p, {in_bias_.as<void>(), DType::kF32, {stride}}, 1);
    if (gates_in_.bytes() > 0) {
      float* const of_gates = in_bias_.as<float>() + stride;
      AddBias(args.context, gates, {of_gates, DType::kF32, {gates_in_.out()}}, 1);
    }
  }
  RecurrentInputs inputs = {.projected = p.as<float>(),
                            .projected_stride = stride,
                            .gates = gates.as<float>(),
                            .gates_stride = gates.shape[1],
                            .convolved = scope.Allocate<float>(n_tokens * layer_.conv.n_filters()),
                            .convolved_stride = layer_.conv.n_filters(),
                            .y = scope.Allocate<float>(n_tokens * out_.in())};
  for (size_t i = 0; i < low_rank_.size(); ++i) {
    inputs.low_rank.push_back(ProjectLowRank(args, i, x, scope));
  }
  ConvolveInputs(args, inputs);
  ComputeGates(args, inputs, scope);
  return inputs;
}

TensorView RecurrentMixer::ProjectLowRank(const LayerArgs& args, size_t i, const ProductRows& x,
                                          ScratchScope& scope) const {
  const auto& [down, up, bias] = low_rank_[i];
  const int64_t n_tokens = args.seqs.n_tokens();
  TensorView between = scope.Tensor(DType::kF32, {n_tokens, down.out()});
  down.Apply(args.context, x.x, between);  // the first product has computed x
  if (compute_ != DType::kF32) {
    const TensorView rounded = scope.Tensor(compute_, between.shape);
    Copy(args.context, between, rounded);
    between = rounded;
  }
  const TensorView y = scope.Tensor(DType::kF32, {n_tokens, up.out()});
  up.Apply(args.context, between, y);
  if (bias.bytes() > 0) AddBias(args.context, y, {bias.as<void>(), DType::kF32, {up.out()}}, 1);
  return y;
}

void RecurrentMixer::ConvolveInputs(const LayerArgs& args, const RecurrentInputs& inputs) const {
  const RecurrentLayer::Convolution& conv = layer_.conv;
  const auto newest = static_cast<int>(layer_.fields.size());
  Convolve(args.context, args.seqs,
           {.u = inputs.projected + conv.first,
            .u_stride = inputs.projected_stride,
            .width = conv.width,
            .conv_size = conv.size,
            .n_filters = conv.n_filters(),
            .weight = conv_.weight.as<float>(),
            .bias = conv_.bias.as<float>(),
            .newest = args.where.fixed_offset + (conv.size > 1 ? state_.fixed.offset(newest) : 0),
            .y = inputs.convolved});
  const RecurrentLayer::UnitHeads& heads = layer_.unit_heads;
  if (heads.n_heads == 0) return;
  const HeadRows queries = {inputs.convolved, args.seqs.n_tokens(), heads.n_heads, heads.head_dim,
                            inputs.convolved_stride};
  HeadRows keys = queries;
  keys.data += int64_t{heads.n_heads} * heads.head_dim;
  PrepareHeads(args.context, {.queries = queries,
                              .keys = keys,
                              .norm = HeadNorm::kUnit,
                              .beta = query_scale_.as<float>()});
}

void RecurrentMixer::ComputeGates(const LayerArgs& args, RecurrentInputs& inputs,
                                  ScratchScope& scope) const {
  const int64_t n_tokens = args.seqs.n_tokens();
  for (size_t i = 0; i < layer_.sigmoids.size(); ++i) {
    auto* const y = scope.Allocate<float>(n_tokens * layer_.n_heads);
    Sigmoid(args.context, {.x = inputs.gates + layer_.sigmoids[i].channel,
                           .x_stride = inputs.gates_stride,
                           .n_tokens = n_tokens,
                           .n_heads = layer_.n_heads,
                           .y = y,
                           .bias = sigmoid_biases_[i].as<float>(),
                           .scale = layer_.sigmoids[i].scale});
    inputs.sigmoids.push_back(y);
  }
  if (!layer_.decay) return;
  const RecurrentLayer::DecayInput& decay = *layer_.decay;
  const int n_decays = layer_.n_heads * decay.n_channels;
  const int64_t size = n_tokens * n_decays;
  const bool is_factored = decay.projection >= 0;
  const DecayGate gate = {.x = is_factored ? inputs.low_rank[decay.projection].as<float>()
                                           : inputs.gates + decay.channel,
                          .x_stride = is_factored ? n_decays : inputs.gates_stride,
                          .n_tokens = n_tokens,
                          .n_heads = n_decays,
                          .bias = dt_bias_.as<float>(),
                          .rate = rate_.as<float>(),
                          .decay = scope.Allocate<float>(size),
                          .dt = scope.Allocate<float>(size),
                          .min_dt = decay.min_dt,
                          .max_dt = decay.max_dt,
                          .lower_bound = decay.lower_bound};
  Decay(args.context, gate);
  inputs.decay = gate.decay;
  inputs.dt = gate.dt;
  inputs.rate = gate.rate;
}

void RecurrentMixer::Output(const LayerArgs& args, const RecurrentInputs& inputs,
                            TensorView y) const {
  ScratchScope scope(args.context);
  const TensorView normed = scope.Tensor(compute_, {args.seqs.n_tokens(), out_.in()});
  const RecurrentLayer::Norm& norm = layer_.norm;
  const RecurrentLayer::OutputGate& gate = layer_.gate;
  const bool is_factored = gate.projection >= 0;
  const float* const z =
      is_factored ? inputs.low_rank[gate.projection].as<float>() : inputs.projected + gate.channel;
  NormAndGate(args.context, {.x = inputs.y,
                             .n_tokens = args.seqs.n_tokens(),
                             .n_groups = norm.n_groups,
                             .width = out_.in() / norm.n_groups,
                             .weight = norm_weight_.as<float>(),
                             .shares_weight = norm.shares_weight,
                             .eps = norm.eps,
                             .gate = gate.kind,
                             .z = gate.kind == GateKind::kNone ? nullptr : z,
                             .z_stride = is_factored ? out_.in() : inputs.projected_stride,
                             .gates_input = gate.before_norm,
                             .y = normed.data,
                             .y_dtype = compute_});
  out_.Apply(args.context, normed, y, args.adds);
  if (out_bias_.bytes() == 0) return;
  AddBias(args.context, y, {out_bias_.as<void>(), DType::kF32, {y.shape[1]}}, 1);
}

}  // namespace ovq::kernels
