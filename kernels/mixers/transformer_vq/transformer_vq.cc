#include "kernels/mixers/transformer_vq/transformer_vq.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/common/dispatch.h"

namespace ovq::kernels {
namespace {

constexpr float kNormEps = 1e-6f;  // norm of q and k

// Rows [first, first + n) of a matrix of `width` columns.
TensorView Rows(const TensorView& matrix, int64_t first, int64_t n, int64_t width) {
  std::byte* data =
      matrix.as<std::byte>() + static_cast<size_t>(first * width) * DTypeBytes(matrix.dtype);
  return {data, matrix.dtype, {n, width}};
}

Linear LoadRows(const MixerSpec& spec, const TensorView& weights, DType compute) {
  absl::StatusOr<Linear> product = Linear::Make({&weights, 1}, compute, spec.context);
  spec.weights.Update(product.status());
  return product.ok() ? *std::move(product) : Linear();
}

std::vector<float> Scaled(std::vector<float> values, float scale) {
  for (float& value : values) value *= scale;
  return values;
}

// The relative keys R_distance = c W_r S(distance), [mem_len + 1][n_heads * head_dim].
std::vector<float> RelativeKeys(const MixerSpec& spec, const TransformerVqConfig& config, float c) {
  DeviceContext& context = spec.context;
  const int64_t n = config.shape.mem_len + 1, d_model = spec.state.d_model,
                width = int64_t{config.shape.n_heads} * config.shape.head_dim;
  const Linear product = spec.weights.FloatProduct({"self_attn.r_proj.weight", width}, d_model);
  if (!spec.weights.status().ok()) return {};
  std::vector<float> keys(static_cast<size_t>(n * std::max(width, d_model)));
  const Buffer waves =
      context.Upload(keys.data(), static_cast<size_t>(n * d_model) * sizeof(float));
  const Buffer result(context.device(), static_cast<size_t>(n * width) * sizeof(float));
  std::vector<int64_t> distances(static_cast<size_t>(n));
  std::iota(distances.begin(), distances.end(), 0);
  const Buffer positions = context.Upload(distances);
  const RopeTable table(context, {.theta = config.pe_lam, .dims = static_cast<int>(d_model)});
  const TensorView x = {waves.as<void>(), DType::kF32, {n, d_model}};
  AddSinusoids(context, table, {positions.as<const int64_t>(), distances.size()}, c, x);
  product.Apply(context, x, {result.as<void>(), DType::kF32, {n, width}});
  keys.resize(static_cast<size_t>(n * width));
  context.CopyToHost(keys.data(), result.as<void>(), keys.size() * sizeof(float));
  return keys;
}

std::vector<float> HalfNorms(const std::vector<float>& codes, size_t head_dim) {
  std::vector<float> norms;
  for (size_t code = 0; code < codes.size(); code += head_dim) {
    double squares = 0;
    for (size_t i = code; i < code + head_dim; ++i) squares += double{codes[i]} * codes[i];
    norms.push_back(static_cast<float>(squares / 2));
  }
  return norms;
}

}  // namespace

TransformerVq::TransformerVq(const StateSpec&, const TransformerVqConfig& config)
    : config_(config) {
  const TransformerVqShape& shape = config.shape;
  state_.fixed = StateFields(
      {{"values", DType::kF32, {shape.n_heads, shape.slices(), shape.slots(), kValueSlice}},
       {"counts", DType::kU32, {shape.n_heads, shape.n_means()}},
       {"codes", DType::kI32, {shape.n_heads, shape.ring()}, {0, shape.n_codes - 1.0}}});
  state_.span = kTransformerVqSpan;
}

void TransformerVq::Load(const MixerSpec& spec) {
  compute_ = spec.compute_dtype;
  const int64_t d_model = spec.state.d_model,
                width = int64_t{config_.shape.n_heads} * config_.shape.value_dim;
  gates_values_ = spec.weights.Product(
      {{"self_attn.g_proj.weight", width}, {"self_attn.v_proj.weight", width}}, d_model);
  output_ =
      spec.weights.Product({{"self_attn.o_proj.weight", d_model}}, width, spec.residual_scale);
  LoadHeads(spec);
}

void TransformerVq::LoadHeads(const MixerSpec& spec) {
  const TransformerVqShape& shape = config_.shape;
  WeightReader& weights = spec.weights;
  const int64_t heads = shape.n_heads, d = shape.head_dim, n = shape.n_codes,
                d_model = spec.state.d_model;
  const auto c = static_cast<float>(std::pow(static_cast<double>(d), -0.25));
  const TensorView queries = weights.GetTensor("self_attn.q_proj.weight", {heads * d, d_model}),
                   keys = weights.GetTensor("self_attn.k_proj.weight", {heads * d, d_model}),
                   codebook = weights.GetTensor("self_attn.codebook", {heads, n, d});
  const std::vector<float> u = Scaled(weights.HostFloats("self_attn.xl_u", {heads, d}), c),
                           v = Scaled(weights.HostFloats("self_attn.xl_v", {heads, d}), c),
                           relative = RelativeKeys(spec, config_, c);
  const auto upload = [&](const float* values, int64_t count) {
    return spec.context.Upload(values, static_cast<size_t>(count) * sizeof(float));
  };
  norm_weight_ = upload(std::vector<float>(static_cast<size_t>(d), c).data(), d);
  for (int64_t h = 0; h < heads && weights.status().ok(); ++h) {
    Head& head = heads_.emplace_back();
    head.query = LoadRows(spec, Rows(queries, h * d, d, d_model), compute_);
    head.key = LoadRows(spec, Rows(keys, h * d, d, d_model), compute_);
    head.code_bias = upload(u.data() + h * d, d);
    head.position_bias = upload(v.data() + h * d, d);
    const TensorView codes = Rows(codebook, h * n, n, d);
    head.codes = LoadRows(spec, codes, DType::kF32);
    head.half_norms = upload(HalfNorms(ToFloats(codes), static_cast<size_t>(d)).data(), n);
    std::vector<float> of_head;
    for (auto row = relative.begin(); row != relative.end(); row += heads * d) {
      of_head.insert(of_head.end(), row + h * d, row + (h + 1) * d);
    }
    head.relative =
        LoadRows(spec, {of_head.data(), DType::kF32, {shape.mem_len + 1, d}}, DType::kF32);
  }
}

void TransformerVq::Forward(const LayerArgs& args, const ProductRows& x, TensorView y) const {
  ScratchScope scope(args.context);
  const int64_t n_tokens = args.seqs.n_tokens(), width = output_.in();
  // [gates | values] of all heads. The attention's results replace the values.
  const TensorView projected = scope.Tensor(DType::kF32, {n_tokens, 2 * width});
  gates_values_.Apply(args.context, x, projected);
  for (int h = 0; h < config_.shape.n_heads; ++h) {
    AttendHead(args, h, x.x, projected.as<float>() + width + int64_t{h} * config_.shape.value_dim,
               2 * width);
  }
  const TensorView gated = scope.Tensor(compute_, {n_tokens, width});
  SwiGlu(args.context, projected, gated);
  output_.Apply(args.context, gated, y, args.adds);
}

void TransformerVq::AttendHead(const LayerArgs& args, int h, TensorView x, float* tokens,
                               int64_t stride) const {
  const TransformerVqShape& shape = config_.shape;
  const Head& head = heads_[h];
  DeviceContext& context = args.context;
  ScratchScope scope(context);
  const int64_t n = args.seqs.n_tokens(), d = shape.head_dim;
  const TensorView q = scope.Tensor(DType::kF32, {n, d}), k = scope.Tensor(DType::kF32, {n, d}),
                   with_codes = scope.Tensor(DType::kF32, {2 * n, d}),
                   with_positions = scope.Tensor(DType::kF32, {n, d}),
                   scores = scope.Tensor(DType::kF32, {2 * n, shape.n_codes}),
                   relative = scope.Tensor(DType::kF32, {n, shape.mem_len + 1});
  head.query.Apply(context, x, q);
  head.key.Apply(context, x, k);
  // c y / sqrt(mean y^2 + eps), plus the queries' biases.
  const auto norm = [&](const TensorView& from, const Buffer* bias, const TensorView& to) {
    NormWeights weights = {{norm_weight_.as<void>(), DType::kF32, {d}}, {}, kNormEps};
    if (bias) weights.bias = {bias->as<void>(), DType::kF32, {d}};
    RmsNorm(context, from, weights, to);
  };
  norm(q, &head.code_bias, Rows(with_codes, 0, n, d));
  norm(k, nullptr, Rows(with_codes, n, n, d));
  norm(q, &head.position_bias, with_positions);
  head.codes.Apply(context, with_codes, scores);
  head.relative.Apply(context, with_positions, relative);
  Dispatch<TransformerVqCpu, TransformerVqCuda>(
      context, TransformerVqArgs{.shape = shape,
                                 .seqs = args.seqs,
                                 .values = place(args.where, kValues, h),
                                 .counts = place(args.where, kCounts, h),
                                 .codes = place(args.where, kCodes, h),
                                 .scores = scores.as<float>(),
                                 .half_norms = head.half_norms.as<float>(),
                                 .relative = relative.as<float>(),
                                 .tokens = tokens,
                                 .token_stride = stride});
}

std::vector<StateExtent> TransformerVq::UndoExtents(const LayerState& where,
                                                    const TokenRange& tokens) const {
  const TransformerVqShape& shape = config_.shape;
  // The end of a span may touch any code's count and mean.
  if (tokens.end % kTransformerVqSpan == 0) {
    return {{where.fixed_offset, state_.fixed.bytes()}};
  }
  std::vector<StateExtent> extents;
  for (int64_t begin = tokens.begin; begin < tokens.end;) {
    const int64_t slot = begin % shape.ring(),
                  n = std::min(tokens.end - begin, shape.ring() - slot);
    const auto add = [&](size_t array, int64_t first, size_t element) {
      extents.push_back(
          {array + static_cast<size_t>(first) * element, static_cast<size_t>(n) * element});
    };
    for (int h = 0; h < shape.n_heads; ++h) {
      add(place(where, kCodes, h), slot, sizeof(int32_t));
      for (int64_t slice = 0; slice < shape.slices(); ++slice) {
        add(place(where, kValues, h), slice * shape.slots() + shape.n_means() + slot,
            kValueSlice * sizeof(float));
      }
    }
    begin += n;
  }
  return extents;
}

void ReadConfig(const FieldReaders& from, TransformerVqConfig& config) {
  AttrReader &section = from.section, &model = from.model;
  TransformerVqShape& shape = config.shape;
  section.Int("num_heads", shape.n_heads, 1, 4096);
  section.Int("head_dim", shape.head_dim, 1, 4096);
  section.Int("value_head_dim", shape.value_dim, 1, 1 << 16);
  section.Int("codebook_size", shape.n_codes, 1, 1 << 20);
  section.Int("mem_len", shape.mem_len, 1, 1 << 20);
  section.Bool("agg_cache", shape.has_means);
  section.Float("pe_lam", config.pe_lam, 1.0, 1e15);
  section.Has("block_len");
  if (!section.ok() || from.d_model % 2 == 0) return;
  model.Fail("hidden_size",
             absl::StrCat("expected an even number for transformer_vq, got ", from.d_model));
}

}  // namespace ovq::kernels
