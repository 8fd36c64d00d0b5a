#include "kernels/mixers/ovq/ovq.h"

#include "absl/status/status.h"
#include "kernels/common/dispatch.h"

namespace ovq {
namespace {

enum Field { kPendingKeys, kPendingValues, kBestScore, kBestSlot };

constexpr size_t kCountsBytes = kBlockSlots * sizeof(uint32_t);
constexpr size_t kLogCountsBytes = kBlockSlots * sizeof(float);

class OvqMixer final : public SequenceMixer {
 public:
  OvqMixer(const OvqConfig& config, AttentionProjection projection)
      : config_(config), state_(config), projection_(std::move(projection)) {}

  const MixerState& state() const override { return state_.layout(); }
  size_t weight_bytes() const override { return projection_.bytes(); }

  void Forward(const StepSeqs& seqs, TensorView x, const LayerState& where, DeviceContext& context,
               TensorView y) const override {
    ScratchScope scope(context);
    const AttentionRows rows = projection_.Project(context, seqs, x, scope);
    const OvqArgs args = {config_, state_, seqs, where, rows};
    Dispatch<OvqAttentionRef, OvqAttentionCpu, OvqAttentionCuda>(context, args);
    projection_.Output(context, rows, y);
  }

 private:
  OvqConfig config_;
  OvqState state_;
  AttentionProjection projection_;
};

// All but the layer, which only the random numbers of its updates depend on.
absl::StatusOr<OvqConfig> ReadConfig(const StateSpec& spec) {
  absl::StatusOr<AttentionShape> shape = ReadAttentionShape(spec.model);
  if (!shape.ok()) return shape.status();
  // Below 2 the first chunk would leave the dictionary empty: n(L) = floor(L N / (L + N)) = 0.
  const int64_t longest = spec.device == Device::kCuda ? kMaxCudaChunkLen : 1 << 16;
  absl::StatusOr<int64_t> chunk_len = spec.section.IntOr("chunk_size", 128, 2, longest);
  if (!chunk_len.ok()) return chunk_len.status();
  absl::StatusOr<int64_t> slot_cap = spec.section.IntOr("max_centroids", 2048, 2, int64_t{1} << 24);
  if (!slot_cap.ok()) return slot_cap.status();
  absl::StatusOr<bool> normalize = spec.section.BoolOr("normalize_centroids", false);
  if (!normalize.ok()) return normalize.status();
  if (*normalize) {
    return absl::InvalidArgumentError(
        "ovq.normalize_centroids: expected false, got true, which this version does not support");
  }
  OvqConfig config{};
  config.shape = *shape;
  config.chunk_len = static_cast<int>(*chunk_len);
  config.dtype = spec.state_dtype;
  return config;
}

}  // namespace

OvqState::OvqState(const OvqConfig& config)
    : chunk_len_(config.chunk_len), pending_blocks_(BlocksFor(config.chunk_len)) {
  const AttentionShape& shape = config.shape;
  const int value_stride = ValueStride(shape.value_head_dim);
  const size_t element = DTypeBytes(config.dtype);
  key_block_bytes_ = static_cast<size_t>(shape.head_dim) * kBlockSlots * element;
  value_block_bytes_ = static_cast<size_t>(value_stride) * kBlockSlots * element;
  head_block_bytes_ = kCountsBytes + kLogCountsBytes + key_block_bytes_ + value_block_bytes_;
  const int64_t heads = shape.n_kv_heads;
  layout_.fixed = StateFields(
      {{"pending_keys", config.dtype, {heads, pending_blocks_, shape.head_dim, kBlockSlots}},
       {"pending_values", config.dtype, {heads, pending_blocks_, kBlockSlots, value_stride}},
       {"best_score", DType::kF32, {heads, chunk_len_}},
       {"best_slot", DType::kI32, {heads, chunk_len_}}});
  layout_.growth = {.law = Growth::Law::kCentroids, .chunk_len = chunk_len_};
  std::vector<StateField> block;
  for (int64_t head = 0; head < heads; ++head) {
    block.push_back({"counts", DType::kU32, {kBlockSlots}});
    block.push_back({"log_counts", DType::kF32, {kBlockSlots}});
    block.push_back({"keys", config.dtype, {shape.head_dim, kBlockSlots}});
    block.push_back({"values", config.dtype, {kBlockSlots, value_stride}});
  }
  layout_.block = StateFields(std::move(block));
}

OvqPlaces OvqState::Places(const LayerState& where) const {
  const size_t chunk = static_cast<size_t>(chunk_len_) * sizeof(float);
  const auto blocks = static_cast<size_t>(pending_blocks_);
  const auto fixed = [&](Field field, size_t head_stride, size_t index_stride) {
    return StatePlace{where.fixed_offset + layout_.fixed.offset(field), head_stride, index_stride};
  };
  const auto block = [&](size_t offset) {
    return StatePlace{where.blocks_offset + offset, head_block_bytes_, where.block_stride};
  };
  return {.pending_keys = fixed(kPendingKeys, blocks * key_block_bytes_, key_block_bytes_),
          .pending_values = fixed(kPendingValues, blocks * value_block_bytes_, value_block_bytes_),
          .best_score = fixed(kBestScore, chunk, sizeof(float)),
          .best_slot = fixed(kBestSlot, chunk, sizeof(int32_t)),
          .counts = block(0),
          .log_counts = block(kCountsBytes),
          .keys = block(kCountsBytes + kLogCountsBytes),
          .values = block(kCountsBytes + kLogCountsBytes + key_block_bytes_)};
}

OvqHead OvqState::Head(std::byte* session, const LayerState& where, int kv_head) const {
  const OvqPlaces places = Places(where);
  return {
      .pending_keys = places.pending_keys.At(session, kv_head),
      .pending_values = places.pending_values.At(session, kv_head),
      .best_score = reinterpret_cast<float*>(places.best_score.At(session, kv_head)),
      .best_slot = reinterpret_cast<int32_t*>(places.best_slot.At(session, kv_head)),
      .first_block = places.counts.At(session, kv_head),
      .block_stride = places.counts.index_stride,
      .key_block_bytes = key_block_bytes_,
      .value_block_bytes = value_block_bytes_,
      .log_counts_offset = places.log_counts.offset - places.counts.offset,
      .keys_offset = places.keys.offset - places.counts.offset,
      .values_offset = places.values.offset - places.counts.offset,
  };
}

absl::StatusOr<MixerState> OvqAttentionState(const StateSpec& spec) {
  absl::StatusOr<OvqConfig> config = ReadConfig(spec);
  if (!config.ok()) return config.status();
  return OvqState(*config).layout();
}

absl::StatusOr<std::unique_ptr<SequenceMixer>> MakeOvqAttention(const MixerSpec& spec) {
  absl::StatusOr<OvqConfig> config = ReadConfig(spec.state);
  if (!config.ok()) return config.status();
  config->layer = spec.layer;
  absl::StatusOr<AttentionProjection> projection =
      AttentionProjection::Make(spec, config->shape, /*rope_theta=*/0);
  if (!projection.ok()) return projection.status();
  return std::make_unique<OvqMixer>(*config, *std::move(projection));
}

}  // namespace ovq
