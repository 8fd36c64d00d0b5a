#include "kernels/mixers/lattice/lattice.h"

#include <array>
#include <cmath>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "kernels/common/dispatch.h"

namespace ovq::kernels {
namespace {

enum Field { kSlots };

constexpr int64_t kMaxHeads = 4096;

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

RecurrentLayer Lattice::Describe(const Config& config) {
  const int64_t keys = config.key_width(), values = config.value_width(), heads = config.n_heads;
  RecurrentLayer layer = {
      .n_heads = config.n_heads,
      .fields = {{.name = "slots",
                  .dtype = DType::kF32,
                  .shape = {heads, config.n_slots, config.stride()}}},
      .in = {{"self_attn.qk_proj.weight", keys},
             {"self_attn.v_proj.weight", values},
             {"self_attn.g_proj.weight", values}},
      .gates_in = {{"self_attn.b_proj.weight", heads}},
      .out = {"self_attn.o_proj.weight", values},
      // One projection is the input of both convolutions.
      .conv = {.filters = {{"self_attn.q_conv1d", keys}, {"self_attn.k_conv1d", keys}},
               .width = keys,
               .size = config.conv_size,
               .has_bias = config.conv_bias},
      .unit_heads = {.n_heads = config.n_heads, .head_dim = config.n_slots},
      .sigmoids = {{.channel = 0}},
      .norm = {.weight = "self_attn.o_norm.weight",
               .n_groups = config.n_heads,
               .eps = config.norm_eps},
      .gate = {.kind = GateKind::kGeluTanh, .channel = keys + values}};
  if (config.use_forget_gate) {
    layer.gates_in.push_back({"self_attn.a_proj.weight", heads});
    layer.decay = {.channel = heads};
  }
  return layer;
}

void Lattice::LoadOwn(const MixerSpec& spec) {
  if constexpr (kWithCuda) {
    if (spec.context.device() == Device::kCuda) {
      spec.weights.Update(CheckLatticeCuda(spec.context, config_));
    }
  }
  SetInitial(kSlots, LoadInitialSlots(spec, config_));
}

void Lattice::Advance(const LayerArgs& args, const RecurrentInputs& inputs) const {
  Dispatch<LatticeCpu, LatticeCuda>(
      args.context, args.seqs,
      LatticeArgs{.config = config_,
                  .slots = args.where.FixedPlace(state_, kSlots),
                  .q = inputs.convolved,
                  .k = inputs.convolved + config_.key_width(),
                  .v = inputs.projected + config_.key_width(),
                  .qk_stride = inputs.convolved_stride,
                  .v_stride = inputs.projected_stride,
                  .gates = {.gamma = inputs.sigmoids[0],
                            .mu = config_.decays() ? inputs.decay : nullptr,
                            .dt = config_.thresholds ? inputs.dt : nullptr,
                            .rate = config_.thresholds ? inputs.rate : nullptr},
                  .y = inputs.y});
}

}  // namespace ovq::kernels
