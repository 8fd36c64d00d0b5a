#include "kernels/mixers/common/attention.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/common/dispatch.h"
#include "kernels/mixers/common/token_shift.h"

namespace ovq::kernels {
namespace {

constexpr int64_t kMaxHeads = 4096;
constexpr int64_t kMaxHeadDim = 1024;
constexpr int64_t kMaxGateRank = 1 << 16;
constexpr int64_t kMaxLayer = 1 << 16;
constexpr double kMaxScoreScale = 1e6;
constexpr double kMaxGrowth = 100;
constexpr int64_t kMaxFloorTokens = int64_t{1} << 40;

// The name, among a batch's tensors, of layer `layer`'s projection of FirstValuesInput.
std::string FirstValues(int layer) { return absl::StrCat("first_values.", layer); }

void ReadShape(AttrReader& model, AttentionShape& shape) {
  model.Int("num_attention_heads", shape.n_heads, 1, kMaxHeads);
  if (shape.n_kv_heads == 0) shape.n_kv_heads = shape.n_heads;
  model.Int("num_key_value_heads", shape.n_kv_heads, 1, kMaxHeads);
  model.Int("head_dim", shape.head_dim, 1, kMaxHeadDim);
  if (shape.value_head_dim == 0) shape.value_head_dim = shape.head_dim;
  model.Int("value_head_dim", shape.value_head_dim, 1, kMaxHeadDim);
  if (model.ok() && shape.n_heads % shape.n_kv_heads != 0) {
    model.Fail("num_key_value_heads", absl::StrCat("expected a divisor of num_attention_heads = ",
                                                   shape.n_heads, ", got ", shape.n_kv_heads));
  }
}

// Reads qk_norm and its fields.
void ReadNorm(AttrReader& model, const AttentionShape& shape, AttentionInput& input) {
  constexpr std::string_view kNorms[] = {"unit", "l2", "layer", "none", "rms", "rms_all_heads"};
  constexpr std::string_view kWeights[] = {"plain", "one_plus", "none"};
  constexpr HeadNorm kHeadNorms[] = {HeadNorm::kUnit, HeadNorm::kL2,  HeadNorm::kLayer,
                                     HeadNorm::kNone, HeadNorm::kRms, HeadNorm::kRms};
  const auto in_place = std::ranges::find(kHeadNorms, input.norm) - std::begin(kHeadNorms);
  const int norm = model.ChoiceOr("qk_norm", kNorms,
                                  static_cast<int>(in_place) + (input.norms_all_heads ? 1 : 0));
  input.norm = kHeadNorms[norm];
  input.norms_all_heads = kNorms[norm] == "rms_all_heads";
  if (input.norm == HeadNorm::kRms) {
    model.Float("qk_norm_eps", input.norm_eps, 0, 1);
    model.Choice("qk_norm_weight", input.norm_weight, kWeights);
  }
  if (input.norm != HeadNorm::kRms && input.norm != HeadNorm::kNone) return;
  const double scale = 1 / std::sqrt(static_cast<double>(shape.head_dim));
  if (!input.score_scale) input.score_scale = static_cast<float>(scale);
  model.Float("score_scale", *input.score_scale, 0, kMaxScoreScale);
}

// Reads value_residual and its fields.
void ReadValueResidual(const FieldReaders& from, const AttentionShape& shape,
                       AttentionInput& input) {
  constexpr std::string_view kResiduals[] = {"none", "gated", "linear", "gated_after_shift"};
  AttrReader& model = from.model;
  model.Choice("value_residual", input.value_residual, kResiduals);
  const bool mixes = input.value_residual != AttentionInput::ValueResidual::kNone;
  if (mixes || input.value_layer >= 0 || model.Has("value_residual_layer")) {
    model.Int("value_residual_layer", input.value_layer, 0, kMaxLayer);
  }
  if (input.value_residual == AttentionInput::ValueResidual::kGated || input.shifts_gate()) {
    model.Int("value_gate_rank", input.gate_rank, 1, kMaxGateRank);
  }
  const int64_t channels = int64_t{shape.n_kv_heads} * shape.value_head_dim;
  if (!model.ok() || !input.shifts_gate() || input.own_gate_shift || channels == from.d_model) {
    return;
  }
  model.Fail("value_residual",
             absl::StrCat("a gate after the token shift needs as many channels of values as "
                          "hidden_size = ",
                          from.d_model, ", got ", channels));
}

// Reads rope and its fields.
void ReadRope(AttrReader& model, const AttentionShape& shape, RopeSpec& spec) {
  constexpr std::string_view kRopes[] = {"none", "halves", "interleaved", "pairs"};
  enum { kNone, kHalves, kInterleaved, kPairs };
  const int in_place = spec.dims == 0 ? kNone : kHalves + static_cast<int>(spec.layout);
  const int rope = model.ChoiceOr("rope", kRopes, in_place);
  if (rope == kNone) {
    spec.dims = 0;
    return;
  }
  spec.layout = RopeSpec::Layout(rope - kHalves);
  model.Float("rope_theta", spec.theta, 1.0, 1e15);
  const bool has_dims = spec.dims > 0 || model.Has("rope_dims");
  if (spec.dims <= 0) spec.dims = shape.head_dim;
  model.Int("rope_dims", spec.dims, 1, model.ok() ? shape.head_dim : kMaxHeadDim);
  if (rope == kPairs) model.Bool("rope_rounds_to_bfloat16", spec.rounds_to_bf16);
  if (model.ok() && spec.dims % 2 != 0) {
    model.Fail(has_dims ? "rope_dims" : "head_dim",
               absl::StrCat("expected an even number for RoPE, got ", spec.dims));
  }
}

}  // namespace

void ReadAttention(const FieldReaders& from, AttentionConfig& config) {
  AttrReader& model = from.model;
  AttentionInput& input = config.input;
  ReadShape(model, config.shape);
  ReadValueResidual(from, config.shape, input);
  model.Bool("token_shift", input.token_shift);
  model.Bool("attention_bias", input.bias);
  model.Bool("output_gate", input.gate);
  if (input.gate) model.Bool("output_gate_bias", input.gate_bias);
  if (input.gate && input.token_shift) {
    model.Fail("output_gate", "expected false with token_shift, which shifts no gate");
  }
  ReadNorm(model, config.shape, input);
  model.Bool("latent_norm", input.latent_norm);
  if (input.latent_norm) {
    model.Float("latent_norm_eps", input.latent_norm_eps, 0, 1);
    if (model.ok() && config.shape.value_head_dim > config.shape.head_dim) {
      model.Fail("value_head_dim",
                 "expected at most head_dim with latent_norm: values are the "
                 "beginnings of keys");
    }
  }
  ReadRope(model, config.shape, input.rope);
  if (input.rope.dims != 0) return;
  model.Float("attn_scale", input.growth.scale, 0, kMaxGrowth);
  model.Int("floor_scale", input.growth.floor_tokens, 1, kMaxFloorTokens);
}

std::string FirstValuesInput(int layer) { return absl::StrCat("first_values_input.", layer); }

Attention::Attention(const StateSpec& spec, const AttentionConfig& config)
    : shape(config.shape), input(config.input), dtype(spec.kv_dtype), d_model_(spec.d_model) {}

void Attention::SetFixed(std::vector<StateField> own) {
  own_fields = static_cast<int>(own.size());
  own_fixed_bytes = StateFields(own).bytes();
  if (input.token_shift) {
    own.push_back(TokenShiftField(shape.q_width() + shape.k_width() + shape.v_width()));
  }
  if (input.shifts_gate()) own.push_back(TokenShiftField(d_model_, "newest_x"));
  state_.fixed = StateFields(std::move(own));
}

AttentionBlocks Attention::NewBlocks() const {
  AttentionBlocks blocks;
  blocks.shape = shape;
  blocks.dtype = dtype;
  blocks.compute_dtype = compute_;
  blocks.layer = layer;
  return blocks;
}

void Attention::Load(const MixerSpec& spec) {
  layer = spec.layer;
  compute_ = spec.compute_dtype;
  LoadOwn(spec);
  WeightReader& weights = spec.weights;
  if constexpr (kWithCuda) {
    if (spec.context.device() == Device::kCuda && weights.status().ok()) {
      AttentionBlocks blocks = NewBlocks();
      blocks.dtype = spec.state.kv_dtype;
      weights.Update(PrepareAttendCuda(spec.context, blocks));
    }
  }
  std::vector<WeightPart> rows = {{"self_attn.q_proj.weight", shape.q_width()},
                                  {"self_attn.k_proj.weight", shape.k_width()},
                                  {"self_attn.v_proj.weight", shape.v_width()}};
  if (input.gate) rows.push_back({"self_attn.g_proj.weight", shape.out_width()});
  qkv_ = weights.Product(rows, d_model_);
  out_ = weights.Product({{"self_attn.o_proj.weight", d_model_}}, shape.out_width(),
                         spec.residual_scale);
  if (input.value_layer == spec.layer) {
    first_values_ = weights.Product({{"self_attn.v_proj.weight", shape.v_width()}}, d_model_);
  }
  LoadBiases(spec);
  LoadValueResidual(spec);
  if (input.token_shift) {
    shift_ = weights.Floats({{"self_attn.q_shift", shape.q_width()},
                             {"self_attn.k_shift", shape.k_width()},
                             {"self_attn.v_shift", shape.v_width()}});
  }
  LoadNorms(spec);
  if (input.rope.dims == 0) return;
  RopeSpec rope = input.rope;
  if (spec.most_tokens <= rope.short_tokens) rope.factors = rope.short_factors;
  rope_.emplace(spec.context, rope);
}

void Attention::Forward(const LayerArgs& args, const ProductRows& x, TensorView y) const {
  PublishValues(args);
  ScratchScope scope(args.context);
  AttentionBlocks blocks = Blocks(args.where);
  if (state_.growth.capped()) blocks.live = args.seqs.live[args.where.growth];
  const AttentionTensors tokens = Project(args, x, blocks, scope);
  Attend(args, {blocks, args.seqs, tokens});
  Output(args, tokens, y);
}

void Attention::Attend(const LayerArgs& layer_args, const AttentionArgs& args) const {
  Dispatch<AttendCpu, AttendCuda>(layer_args.context, args);
}

std::vector<StateExtent> Attention::OwnExtents(const LayerState& where,
                                               const TokenRange& tokens) const {
  return RecentExtents(Blocks(where), tokens);
}

std::vector<StateExtent> Attention::UndoExtents(const LayerState& where,
                                                const TokenRange& tokens) const {
  std::vector<StateExtent> extents = OwnExtents(where, tokens);
  const StateFields& fixed = state_.fixed;
  for (int i = own_fields; i < static_cast<int>(fixed.list().size()); ++i) {
    extents.push_back({where.fixed_offset + fixed.offset(i), fixed.list()[i].bytes()});
  }
  return extents;
}

bool Attention::CanUndoSuffix(const TokenRange& tokens) const {
  return !input.token_shift && !input.shifts_gate() && tokens.end % state_.span != 0 &&
         CanUndoOwnSuffix(tokens);
}

void Attention::LoadBiases(const MixerSpec& spec) {
  WeightReader& weights = spec.weights;
  if (!input.bias && !input.gate_bias) return;
  std::vector<float> bias;  // zeros for a part without a bias
  const auto append = [&](bool has_bias, const WeightPart& part) {
    const auto end = bias.size() + static_cast<size_t>(part.rows);
    if (has_bias) {
      const std::vector<float> in_file = weights.HostFloats(part.leaf, {part.rows});
      bias.insert(bias.end(), in_file.begin(), in_file.end());
    }
    bias.resize(end);
  };
  append(input.bias, {"self_attn.q_proj.bias", shape.q_width()});
  append(input.bias, {"self_attn.k_proj.bias", shape.k_width()});
  append(input.bias, {"self_attn.v_proj.bias", shape.v_width()});
  append(input.gate_bias, {"self_attn.g_proj.bias", input.gate ? shape.out_width() : 0});
  qkv_bias_ = spec.context.Upload(bias);
  if (!input.bias || !input.output_has_bias) return;
  out_bias_ = weights.Floats({{"self_attn.o_proj.bias", d_model_}}, spec.residual_scale);
}

void Attention::LoadNorms(const MixerSpec& spec) {
  WeightReader& weights = spec.weights;
  if (input.latent_norm) {
    latent_norm_ = weights.Floats("self_attn.kv_norm.weight", {shape.value_head_dim});
  }
  const int64_t d = shape.head_dim;
  const auto scale = static_cast<float>(std::sqrt(static_cast<double>(d)));
  switch (input.norm) {
    case HeadNorm::kLayer:
      query_norm_ =
          weights.Floats({{"self_attn.q_norm.weight", d}, {"self_attn.q_norm.bias", d}}, 1 / scale);
      key_norm_ = weights.Floats({{"self_attn.k_norm.weight", d}, {"self_attn.k_norm.bias", d}});
      return;
    case HeadNorm::kRms: {
      const int64_t n_q = input.norms_all_heads ? shape.n_heads : 1;
      const int64_t n_k = input.norms_all_heads ? shape.n_kv_heads : 1;
      query_norm_ = weights.NormWeight("self_attn.q_norm.weight", n_q * d, input.norm_weight,
                                       *input.score_scale);
      key_norm_ = weights.NormWeight("self_attn.k_norm.weight", n_k * d, input.norm_weight);
      return;
    }
    case HeadNorm::kNone: {
      const std::vector<float> scales(static_cast<size_t>(shape.n_heads), *input.score_scale);
      beta_ = spec.context.Upload(scales);
      return;
    }
    case HeadNorm::kUnit:
    case HeadNorm::kL2:
      beta_ = weights.Floats({{"self_attn.beta", shape.n_heads}},
                             input.norm == HeadNorm::kL2 ? scale : 1);
  }
}

void Attention::LoadValueResidual(const MixerSpec& spec) {
  WeightReader& weights = spec.weights;
  const int64_t rank = input.gate_rank, v_width = shape.v_width();
  switch (input.value_residual) {
    case ValueResidual::kNone:
      return;
    case ValueResidual::kLinear: {
      const std::vector<float> share = weights.HostFloats("self_attn.value_residual", {1});
      if (!share.empty()) value_share_ = share[0];
      return;
    }
    case ValueResidual::kGatedAfterShift:
      gate_shift_ = weights.Floats(
          input.own_gate_shift ? "self_attn.value_gate.shift" : "self_attn.v_shift", {d_model_});
      [[fallthrough]];
    case ValueResidual::kGated:
      gate_down_ = weights.Product({{"self_attn.value_gate.down.weight", rank}}, d_model_);
      gate_up_ = weights.FloatProduct({"self_attn.value_gate.up.weight", v_width}, rank);
      gate_bias_ = weights.Floats("self_attn.value_gate.bias", {v_width});
  }
}

void Attention::PublishValues(const LayerArgs& args) const {
  if (first_values_.bytes() == 0) return;
  const TensorView embedded = args.tensors.Get(FirstValuesInput(input.value_layer));
  first_values_.Apply(args.context, embedded,
                      args.tensors.Put(FirstValues(input.value_layer), DType::kF32,
                                       {embedded.shape[0], first_values_.out()}));
}

TensorView Attention::Shift(const LayerArgs& args, TensorView x, const Buffer& mix, size_t newest,
                            ScratchScope& scope) const {
  const TensorView shifted = scope.Tensor(x.dtype, x.shape);
  ShiftTokens(args.context, args.seqs,
              {.x = x.data,
               .x_stride = x.shape[1],
               .width = x.shape[1],
               .mix = mix.as<float>(),
               .newest = newest,
               .begins_empty = false,
               .y = shifted.data,
               .y_dtype = x.dtype,
               .x_dtype = x.dtype});
  return shifted;
}

// Value residual on v [n_tokens, n_kv_heads, value_head_dim], tokens `stride` apart.
void Attention::MixValues(const LayerArgs& args, TensorView x, float* v, int64_t stride) const {
  if (input.value_residual == ValueResidual::kNone) return;
  const TensorView first = args.tensors.Get(FirstValues(input.value_layer));
  Check(first.data != nullptr, "a value residual's layer has come before");
  ScratchScope scope(args.context);
  Mix mix = {.x = v,
             .n_rows = first.shape[0],
             .width = first.shape[1],
             .x_stride = stride,
             .target = first.as<float>(),
             .share = value_share_};
  if (input.value_residual != ValueResidual::kLinear) {
    const TensorView narrow = scope.Tensor(DType::kF32, {mix.n_rows, input.gate_rank});
    const TensorView gate = scope.Tensor(DType::kF32, first.shape);
    gate_down_.Apply(args.context, x, narrow);
    gate_up_.Apply(args.context, narrow, gate);
    mix.gate = gate.as<float>();
    mix.bias = gate_bias_.as<float>();
  }
  MixTowards(args.context, mix);
}

ShiftPlaces Attention::Newest(const LayerState& where) const {
  const StateFields& fixed = state_.fixed;
  const int last = static_cast<int>(fixed.list().size()) - 1;
  ShiftPlaces newest;
  if (input.token_shift) newest.qkv = where.fixed_offset + fixed.offset(own_fields);
  if (input.shifts_gate()) newest.x = where.fixed_offset + fixed.offset(last);
  return newest;
}

AttentionTensors Attention::Project(const LayerArgs& args, const ProductRows& rows,
                                    const AttentionBlocks& blocks, ScratchScope& scope) const {
  const int64_t n_tokens = args.seqs.n_tokens(), stride = qkv_.out();
  const int64_t q_width = shape.q_width(), k_width = shape.k_width();
  const ShiftPlaces newest = Newest(args.where);
  const TensorView out = scope.Tensor(compute_, {n_tokens, out_.in()});
  TensorView qkv = scope.Tensor(DType::kF32, {n_tokens, stride});
  qkv_.Apply(args.context, rows, qkv);
  const TensorView x = rows.x;
  if (qkv_bias_.bytes() > 0) {
    AddBias(args.context, qkv, {qkv_bias_.as<void>(), DType::kF32, {stride}}, 1);
  }
  const int64_t to_values = q_width + k_width;
  if (!input.shifts_gate()) MixValues(args, x, qkv.as<float>() + to_values, stride);
  if (input.token_shift) qkv = Shift(args, qkv, shift_, newest.qkv, scope);
  if (input.shifts_gate()) {
    MixValues(args, Shift(args, x, gate_shift_, newest.x, scope), qkv.as<float>() + to_values,
              stride);
  }
  const float *q = qkv.as<float>(), *k = q + q_width, *v = k + k_width;
  AttentionTensors tokens = {.q = q,
                             .k = k,
                             .v = v,
                             .stride = stride,
                             .out = out.data,
                             .out_dtype = compute_,
                             .x = x,
                             .gate = input.gate ? v + shape.v_width() : nullptr};
  Prepare(args, blocks, qkv.as<float>(), tokens);
  if (input.growth.scale != 0) {
    GrowQueries(args.context, {qkv.as<float>(), n_tokens, shape.n_heads, shape.head_dim, stride},
                input.growth, {args.seqs.device.positions, static_cast<size_t>(n_tokens)},
                compute_ == DType::kBF16);
  }
  return tokens;
}

void Attention::Prepare(const LayerArgs& args, const AttentionBlocks& blocks, float* qkv,
                        AttentionTensors& tokens) const {
  const int64_t n_tokens = args.seqs.n_tokens(), stride = tokens.stride;
  float *q = qkv, *k = q + shape.q_width(), *v = k + shape.k_width();
  if (input.latent_norm) {
    const int n_heads = shape.n_kv_heads, d = shape.value_head_dim;
    for (int head = 0; head < n_heads; ++head) {  // a head's latent is a part of its key
      PrepareHeads(args.context, {.queries = {k + head * shape.head_dim, n_tokens, 1, d, stride},
                                  .keys = {v + head * d, n_tokens, 1, d, stride},
                                  .norm = HeadNorm::kRms,
                                  .query_norm = latent_norm_.as<float>(),
                                  .key_norm = latent_norm_.as<float>(),
                                  .eps = input.latent_norm_eps});
    }
  }
  HeadPrep prep = {.queries = {q, n_tokens, shape.n_heads, shape.head_dim, stride},
                   .keys = {k, n_tokens, shape.n_kv_heads, shape.head_dim, stride},
                   .norm = input.norm,
                   .beta = beta_.as<float>(),
                   .query_norm = query_norm_.as<float>(),
                   .key_norm = key_norm_.as<float>(),
                   .eps = input.norm_eps,
                   .rope = rope_ ? &*rope_ : nullptr,
                   .positions = {args.seqs.device.positions, static_cast<size_t>(n_tokens)},
                   .round_to_bf16 = compute_ == DType::kBF16};
  if (input.norms_all_heads) {  // all heads of a token as one, then the rest head by head
    for (const auto& [heads, weight] :
         {std::pair(prep.queries, prep.query_norm), std::pair(prep.keys, prep.key_norm)}) {
      const HeadRows as_one = {heads.data, n_tokens, 1, heads.n_heads * heads.head_dim, stride};
      PrepareHeads(
          args.context,
          {.queries = as_one, .norm = HeadNorm::kRms, .query_norm = weight, .eps = input.norm_eps});
    }
    prep.norm = HeadNorm::kNone;
  }
  if constexpr (kWithCuda) {
    tokens.stored = args.context.device() == Device::kCuda && args.seqs.one_token_each();
    if (tokens.stored) {
      const HeadRows values = {v, n_tokens, shape.n_kv_heads, shape.value_head_dim, stride};
      return PrepareAndStoreCuda(args.context, prep, values, blocks, args.seqs.device);
    }
  }
  PrepareHeads(args.context, prep);
}

void Attention::Output(const LayerArgs& args, const AttentionTensors& tokens, TensorView y) const {
  const TensorView attended = {
      .data = tokens.out, .dtype = tokens.out_dtype, .shape = {y.shape[0], out_.in()}};
  if (tokens.gate != nullptr) GateBySigmoid(args.context, attended, tokens.gate, tokens.stride);
  out_.Apply(args.context, attended, y, args.adds);
  if (out_bias_.bytes() == 0) return;
  AddBias(args.context, y, {out_bias_.as<void>(), DType::kF32, {y.shape[1]}}, 1);
}

}  // namespace ovq::kernels
