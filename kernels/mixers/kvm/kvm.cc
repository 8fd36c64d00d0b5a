#include "kernels/mixers/kvm/kvm.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <iterator>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "kernels/common/dispatch.h"
#include "kernels/mixers/common/block_attention.h"

namespace ovq::kernels {
namespace {

enum Field { kWindowKeys, kWindowValues, kGates };
// Block fields of one head.
enum BlockField { kLengths, kKeys, kValues, kKeySums, kValueSums };

constexpr int64_t kMaxSlots = int64_t{1} << 40;

void ReadLaw(const FieldReaders& from, KvmLaw& law) {
  static constexpr std::array<std::string_view, 3> kBudgets = {"fixed", "power_law",
                                                               "kvm_saturation"};
  AttrReader& section = from.section;
  const int64_t longest = from.device == Device::kCuda ? kMaxKvmCudaChunkLen : 1 << 16;
  section.Int("chunk_len", law.chunk_len, 2, longest);
  section.Int("n_bswa_chunks", law.window_chunks, 1, 256);
  section.Choice("state_budget_mode", law.budget, kBudgets);
  section.Float("state_growth_factor", law.factor, 0, 1e9);
  // At most 1, or slots would grow faster than tokens arrive.
  section.Float("state_growth_exponent", law.exponent, 0, 1);
  if (law.saturation_n > 0 || section.Has("state_saturation_n")) {
    section.Int("state_saturation_n", law.saturation_n, 1, kMaxSlotCap);
  } else if (law.budget == KvmBudget::kSaturation) {
    section.Fail("state_saturation_n", "expected a number for state_budget_mode kvm_saturation");
  }
  section.Int("state_round_down", law.round_down, 0, longest);
  law.round_down = std::max<int64_t>(1, law.round_down);
  if (section.ok() && law.chunk_len % law.round_down != 0) {
    section.Fail("state_round_down", absl::StrCat("expected a divisor of chunk_len = ",
                                                  law.chunk_len, ", got ", law.round_down));
  }
  section.Int("state_min_len", law.min_slots, -1, kMaxSlots);
  section.Int("n_max_d_chunks", law.max_chunks, 1, kMaxSlotCap);
}

}  // namespace

int64_t KvmLaw::SlotsAt(int64_t chunks) const {
  if (chunks < window_chunks) return 0;
  // Nothing overflows: the smaller bound is chosen before a double becomes an integer.
  const int64_t most = std::min(chunks + 1 - window_chunks, max_chunks) * chunk_len;
  const int64_t position = chunks * chunk_len;
  int64_t target = 0;
  if (budget == KvmBudget::kPowerLaw) {
    target = static_cast<int64_t>(
        std::min(static_cast<double>(most), std::floor(factor * std::pow(position, exponent))));
  } else if (budget == KvmBudget::kSaturation) {
    // floor(N p / (N + p)) = N - ceil(N^2 / (N + p)), exactly.
    const int64_t sum = saturation_n + position;
    target = saturation_n - (saturation_n * saturation_n + sum - 1) / sum;
  }
  target = std::max(target / round_down * round_down, min_slots);
  return std::max(chunk_len, std::min(target, most));
}

Growth KvmLaw::AsGrowth(int64_t default_slot_cap) const {
  return {.name = absl::StrFormat("kvm rows: budget %d, chunks of %d, %d in the window, %.17g "
                                  "t^%.17g, N %d, step %d, from %d, to %d chunks",
                                  static_cast<int>(budget), chunk_len, window_chunks, factor,
                                  exponent, saturation_n, round_down, min_slots, max_chunks),
          .live =
              [law = *this](int64_t position, int64_t slot_cap) {
                return std::min(slot_cap, law.SlotsAt(position / law.chunk_len));
              },
          .period = chunk_len,
          .default_slot_cap = default_slot_cap};
}

void ReadConfig(const FieldReaders& from, KvmConfig& config) {
  AttrReader &model = from.model, &section = from.section;
  ReadAttention(from, config);
  if (model.ok() && config.shape.group() != 1) {
    model.Fail("num_key_value_heads",
               absl::StrCat("expected num_attention_heads = ", config.shape.n_heads,
                            " for kvm_attention, got ", config.shape.n_kv_heads));
  }
  const KvmLaw& law = config.law;
  ReadLaw(from, config.law);
  section.Int("max_centroids", config.default_slot_cap, kMinSlotCap, kMaxSlotCap);
  section.Int("sink_len", config.sink_len, 0, section.ok() ? law.chunk_len - 1 : kMaxSlots);
  section.Int("masked_dims", config.masked_dims, 0, model.ok() ? config.shape.head_dim : kMaxSlots);
  section.Bool("use_merge_gate_keys", config.gate_keys);
  section.Bool("use_merge_gate_values", config.gate_values);
  section.Bool("apply_merge_gate_to_initial_state", config.gate_first);
  section.Bool("apply_merge_gate_to_appends", config.gate_appends);
  section.Bool("use_head_temps", config.head_temps);
  section.Bool("use_vlens", config.value_lengths);
  if (section.ok() && !config.value_lengths &&
      (law.budget != KvmBudget::kFixed || law.min_slots > law.chunk_len)) {
    section.Fail("use_vlens",
                 "expected true: false goes with state_budget_mode fixed and a state_min_len of at "
                 "most chunk_len");
  }
  section.Bool("values_round_to_bfloat16", config.round_values);
}

KvmAttention::KvmAttention(const StateSpec& spec, const KvmConfig& config)
    : Attention(spec, config), config_(config) {
  // One byte is too coarse for the sums behind slots.
  if (IsScaled(dtype)) dtype = DType::kBF16;
  const KvmLaw& law = config.law;
  const int64_t heads = shape.n_kv_heads, d = shape.head_dim,
                window = law.chunk_len * law.window_chunks,
                value_stride = ValueStride(shape.value_head_dim);
  std::vector<StateField> fixed = {
      {"window_keys", dtype, {heads, NumBlocks(window), d, kBlockSlots}},
      {"window_values", dtype, {heads, NumBlocks(window), kBlockSlots, value_stride}}};
  if (config.gated()) fixed.push_back({"gates", DType::kF32, {heads, window}});
  SetFixed(std::move(fixed));
  std::vector<StateField> block;
  for (int64_t head = 0; head < heads; ++head) {
    block.push_back({"lengths", DType::kF32, {kBlockSlots}});
    block.push_back({"keys", dtype, {d, kBlockSlots}});
    block.push_back({"values", dtype, {kBlockSlots, value_stride}});
    block.push_back({"key_sums", dtype, {d, kBlockSlots}});
    block.push_back({"value_sums", dtype, {kBlockSlots, value_stride}});
  }
  state_.block = StateFields(std::move(block));
  state_.block_heads = shape.n_kv_heads;
  state_.growth = law.AsGrowth(config.default_slot_cap);
  state_.span = law.chunk_len;
}

void KvmAttention::LoadOwn(const MixerSpec& spec) {
  WeightReader& weights = spec.weights;
  norm_weight_ = weights.Floats("self_attn.ln_s_k.weight", {shape.head_dim});
  norm_bias_ = weights.Floats("self_attn.ln_s_k.bias", {shape.head_dim});
  if (config_.gated()) {
    gate_ =
        weights.Product({{"self_attn.key_weighting.weight", shape.n_heads}}, spec.state.d_model);
  }
  std::vector<float> front(static_cast<size_t>(shape.n_heads), 1.0f), state = front;
  if (config_.head_temps) {
    const TensorView of_front = weights.GetTensor("self_attn.front_head_temp", {shape.n_heads}),
                     of_state = weights.GetTensor("self_attn.state_head_temp", {shape.n_heads});
    if (!weights.status().ok()) return;
    front = ToFloats(of_front);
    state = ToFloats(of_state);
    // Window keys are stored times their temperature; the slots' keys are recovered from them by
    // dividing.
    if (std::ranges::count(front, 0.0f) > 0) {
      weights.Update(absl::InvalidArgumentError(
          absl::StrCat("self_attn.front_head_temp: expected numbers other than 0, head ",
                       std::ranges::find(front, 0.0f) - front.begin(), " has it")));
    }
  }
  front_temps_ = spec.context.Upload(front);
  state_temps_ = spec.context.Upload(state);
}

AttentionBlocks KvmAttention::Blocks(const LayerState& where) const {
  AttentionBlocks blocks = NewBlocks();
  blocks.wave_span = static_cast<int32_t>(config_.law.chunk_len);
  blocks.dictionary_keys = {where.BlockPlace(state_, kKeys)};
  blocks.dictionary_values = {where.BlockPlace(state_, kValues)};
  blocks.recent_spans = static_cast<int32_t>(config_.law.window_chunks);
  blocks.recent_key_scale = front_temps_.as<float>();
  blocks.recent_keys = {where.FixedPlace(state_, kWindowKeys)};
  blocks.recent_values = {where.FixedPlace(state_, kWindowValues)};
  return blocks;
}

void KvmAttention::Attend(const LayerArgs& layer_args, const AttentionArgs& args) const {
  const LayerState& where = layer_args.where;
  ScratchScope scope(layer_args.context);
  float* gate_logits = nullptr;
  if (config_.gated()) {
    const TensorView logits = scope.Tensor(DType::kF32, {args.seqs.n_tokens(), shape.n_heads});
    gate_.Apply(layer_args.context, args.tokens.x, logits);
    gate_logits = logits.as<float>();
  }
  const KvmParts parts = {
      .gates = config_.gated() ? where.FixedPlace(state_, kGates) : StatePlace{},
      .lengths = where.BlockPlace(state_, kLengths),
      .key_sums = where.BlockPlace(state_, kKeySums),
      .value_sums = where.BlockPlace(state_, kValueSums)};
  const KvmWeights weights = {norm_weight_.as<float>(), norm_bias_.as<float>(),
                              front_temps_.as<float>(), state_temps_.as<float>()};
  Dispatch<KvmAttentionCpu, KvmAttentionCuda>(layer_args.context,
                                              KvmArgs{args, config_, parts, weights, gate_logits});
}

std::vector<StateExtent> KvmAttention::OwnExtents(const LayerState& where,
                                                  const TokenRange& tokens) const {
  const int64_t chunk_len = config_.law.chunk_len, chunks = tokens.end / chunk_len;
  const bool folds = tokens.end % chunk_len == 0 && chunks >= config_.law.window_chunks;
  std::vector<StateExtent> extents;
  if (folds && config_.law.window_chunks > 1) {
    extents.push_back({where.fixed_offset, own_fixed_bytes});  // the window moves
  } else {
    extents = RecentExtents(Blocks(where), tokens);
    const int64_t first = tokens.begin - Blocks(where).origin(tokens.begin);
    for (int head = 0; config_.gated() && head < shape.n_kv_heads; ++head) {
      extents.push_back({where.FixedPlace(state_, kGates).ByteOffset(head, first),
                         static_cast<size_t>(tokens.end - tokens.begin) * sizeof(float)});
    }
  }
  if (!folds) return extents;
  const int64_t live = state_.growth.LiveAt(tokens.end, tokens.slot_cap, 0);
  std::ranges::copy(where.BlockExtents(state_, 0, 0, NumBlocks(live)), std::back_inserter(extents));
  return extents;
}

}  // namespace ovq::kernels
