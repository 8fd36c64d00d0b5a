#include "kernels/mixers/lattice/lattice.h"

#include <array>
#include <cmath>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "kernels/common/dispatch.h"
#include "kernels/mixers/recurrent/gates.h"

namespace ovq {
namespace {

enum Field { kSlots, kNewestInputs };

constexpr int64_t kMaxHeads = 4096;

StateFields LatticeFields(const LatticeConfig& config,
                          std::shared_ptr<const std::vector<std::byte>> initial_slots) {
  return StateFields({{"slots",
                       DType::kF32,
                       {config.n_heads, config.n_slots, config.stride()},
                       {},
                       std::move(initial_slots)},
                      ShortConvField(config.key_width(), config.conv_size)});
}

// Loads the initial slots, scaled to unit length and padded with zeros.
std::shared_ptr<const std::vector<std::byte>> LoadInitialSlots(const MixerSpec& spec,
                                                               const LatticeConfig& config) {
  constexpr char kLeaf[] = "self_attn.initial_state";
  const int64_t width = config.value_head_dim, stride = config.stride();
  const std::vector<float> rows =
      spec.weights.HostFloats(kLeaf, {config.n_heads, config.n_slots, width});
  if (rows.empty()) return nullptr;
  std::vector<float> slots(static_cast<size_t>(config.key_width() * stride));
  for (int64_t i = 0; i < config.key_width(); ++i) {
    const float* row = rows.data() + i * width;
    double squares = 0;
    for (int64_t c = 0; c < width; ++c) squares += static_cast<double>(row[c]) * row[c];
    if (!(squares > 0)) {
      spec.weights.Update(absl::InvalidArgumentError(
          absl::StrCat(kLeaf, ": expected rows that have a length, row ", i % config.n_slots,
                       " of head ", i / config.n_slots, " is ", squares == 0 ? "zero" : "NaN")));
      return nullptr;
    }
    for (int64_t c = 0; c < width; ++c) {
      slots[i * stride + c] = static_cast<float>(row[c] / std::sqrt(squares));
    }
  }
  auto bytes = std::make_shared<std::vector<std::byte>>(slots.size() * sizeof(float));
  std::memcpy(bytes->data(), slots.data(), bytes->size());
  return bytes;
}

}  // namespace

void ReadConfig(const FieldReaders& from, LatticeConfig& config) {
  static constexpr std::array<std::string_view, 3> kObjectives = {"dec", "enc", "sim"};
  static constexpr std::array<std::string_view, 2> kRegularizations = {"l2", "l1"};
  AttrReader& section = from.section;
  section.Int("num_heads", config.n_heads, 1, kMaxHeads);
  section.Int("num_slots", config.n_slots, 1, kMaxLatticeSlots);
  section.Int("value_head_dim", config.value_head_dim, 1, kMaxLatticeValueDim);
  section.Int("conv_size", config.conv_size, 2, kMaxConvSize);
  section.Bool("conv_bias", config.conv_bias);
  section.Choice("objective", config.objective, kObjectives);
  section.Bool("normalized_projection", config.normalized_projection);
  section.Bool("use_forget_gate", config.use_forget_gate);
  section.Choice("regularization", config.thresholds, kRegularizations);
  from.model.Float("rms_norm_eps", config.norm_eps, 0, 1);
  if (config.thresholds && !config.use_forget_gate) {
    section.Fail("regularization", "expected l2 with use_forget_gate false: there is none");
  }
  const int64_t most = kMaxLatticeCudaElements / config.stride();
  if (section.ok() && from.device == Device::kCuda && config.n_slots > most) {
    section.Fail("num_slots",
                 absl::StrCat("expected at most ", most, " on cuda with value_head_dim ",
                              config.value_head_dim, ", got ", config.n_slots));
  }
}

Lattice::Lattice(const Config& config) : config(config) {
  layout.fixed = LatticeFields(config, nullptr);
}

void Lattice::Load(const MixerSpec& spec) {
  WeightReader& weights = spec.weights;
  compute = spec.compute_dtype;
  const int64_t d_model = spec.state.d_model, keys = config.key_width(),
                values = config.value_width();
  std::vector<WeightPart> parts = {{"self_attn.qk_proj.weight", keys},
                                   {"self_attn.v_proj.weight", values},
                                   {"self_attn.g_proj.weight", values},
                                   {"self_attn.b_proj.weight", config.n_heads}};
  if (config.use_forget_gate) {
    parts.push_back({"self_attn.a_proj.weight", config.n_heads});
    dt_bias = weights.Floats("self_attn.dt_bias", {config.n_heads});
    rate = LoadDecayRates(spec, "self_attn.A_log", config.n_heads);
  }
  in = weights.Product(parts, d_model);
  conv = LoadShortConv(spec, {{"self_attn.q_conv1d", keys}, {"self_attn.k_conv1d", keys}},
                       config.conv_size, config.conv_bias);
  norm_weight = weights.Floats("self_attn.o_norm.weight", {config.value_head_dim});
  out = weights.Product({{"self_attn.o_proj.weight", d_model}}, values, spec.residual_scale);
  layout.fixed = LatticeFields(config, LoadInitialSlots(spec, config));
}

LatticeGates Lattice::Gates(const LayerArgs& args, TensorView projected,
                            ScratchScope& scope) const {
  const int64_t n_tokens = projected.shape[0];
  const float* logits = projected.as<float>() + config.key_width() + 2 * config.value_width();
  float* const gamma = scope.Allocate<float>(n_tokens * config.n_heads);
  Sigmoid(args.context, {.x = logits,
                         .x_stride = in.out(),
                         .n_tokens = n_tokens,
                         .n_heads = config.n_heads,
                         .y = gamma});
  if (!config.use_forget_gate) return {gamma, nullptr, nullptr, nullptr};
  const DecayGate gate = {.x = logits + config.n_heads,
                          .x_stride = in.out(),
                          .n_tokens = n_tokens,
                          .n_heads = config.n_heads,
                          .bias = dt_bias.as<float>(),
                          .rate = rate.as<float>(),
                          .decay = scope.Allocate<float>(n_tokens * config.n_heads),
                          .dt = scope.Allocate<float>(n_tokens * config.n_heads)};
  Decay(args.context, gate);
  if (config.decays()) return {gamma, gate.decay, nullptr, nullptr};
  return {gamma, nullptr, gate.dt, gate.rate};
}

float* Lattice::Read(const LayerArgs& args, TensorView projected, ScratchScope& scope) const {
  DeviceContext& context = args.context;
  const int64_t n_tokens = projected.shape[0], keys = config.key_width();
  float *const qk = scope.Allocate<float>(n_tokens * 2 * keys), *const y = scope.Allocate<float>(
                                                                    n_tokens *
                                                                    config.value_width());
  Convolve(context, args.seqs,
           {.u = projected.as<float>(),
            .u_stride = in.out(),
            .width = keys,
            .conv_size = conv.conv_size,
            .n_filters = 2 * keys,
            .weight = conv.weight.as<float>(),
            .bias = conv.bias.as<float>(),
            .newest = args.where.fixed_offset + layout.fixed.offset(kNewestInputs),
            .y = qk});
  PrepareHeads(context, {.queries = {qk, n_tokens, 2 * config.n_heads, config.n_slots, 2 * keys}});
  const size_t head_bytes =
      layout.fixed.list()[kSlots].bytes() / static_cast<size_t>(config.n_heads);
  Dispatch<LatticeRef, LatticeCpu, LatticeCuda>(
      context,
      LatticeArgs{.config = config,
                  .seqs = args.seqs,
                  .slots = {args.where.fixed_offset + layout.fixed.offset(kSlots), head_bytes, 0},
                  .q = qk,
                  .k = qk + keys,
                  .v = projected.as<float>() + keys,
                  .v_stride = in.out(),
                  .gates = Gates(args, projected, scope),
                  .y = y});
  return y;
}

void Lattice::Forward(const LayerArgs& args, TensorView x, TensorView y) const {
  ScratchScope scope(args.context);
  const int64_t n_tokens = args.seqs.n_tokens();
  const TensorView projected = scope.Tensor(DType::kF32, {n_tokens, in.out()});
  in.Apply(args.context, x, projected);
  float* const read = Read(args, projected, scope);
  const TensorView normed = scope.Tensor(compute, {n_tokens, config.value_width()});
  NormAndGate(args.context, {.x = read,
                             .n_tokens = n_tokens,
                             .n_groups = config.n_heads,
                             .width = config.value_head_dim,
                             .weight = norm_weight.as<float>(),
                             .eps = config.norm_eps,
                             .gate = GateKind::kGeluTanh,
                             .z = projected.as<float>() + config.key_width() + config.value_width(),
                             .z_stride = in.out(),
                             .y = normed.data,
                             .y_dtype = compute});
  out.Apply(args.context, normed, y, args.adds);
}

}  // namespace ovq
