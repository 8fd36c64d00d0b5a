#include "kernels/mixers/ovq/ovq.h"

#include "absl/strings/str_cat.h"
#include "kernels/common/dispatch.h"

namespace ovq {
namespace {

enum Field { kPendingKeys, kPendingValues, kBestScore, kBestSlot };

constexpr size_t kCountsBytes = kBlockSlots * sizeof(uint32_t);
constexpr size_t kLogCountsBytes = kBlockSlots * sizeof(float);

OvqConfig ReadConfig(const StateSpec& spec, absl::Status& status) {
  AttrReader model(spec.model), section(spec.section);
  OvqConfig config{};
  config.shape = ReadAttentionShape(model);
  // Below 2 the first chunk would leave the dictionary empty: n(L) = floor(L N / (L + N)) = 0.
  const int64_t longest = spec.device == Device::kCuda ? kMaxCudaChunkLen : 1 << 16;
  config.chunk_len = static_cast<int>(section.IntOr("chunk_size", 128, 2, longest));
  config.default_slot_cap = section.IntOr("max_centroids", 2048, kMinSlotCap, kMaxSlotCap);
  if (section.BoolOr("normalize_centroids", false)) {
    section.Fail("normalize_centroids",
                 "expected false, got true, which this version does not support");
  }
  config.dtype = spec.kv_dtype;
  status = model.status();
  status.Update(section.status());
  return config;
}

class OvqMixer final : public SequenceMixer {
 public:
  OvqMixer(const OvqConfig& config, AttentionProjection projection)
      : config_(config), state_(config), projection_(std::move(projection)) {}

  const MixerState& state() const override { return state_.layout(); }
  size_t weight_bytes() const override { return projection_.bytes(); }

  void Forward(const LayerStep& step, TensorView x, TensorView y) const override {
    ScratchScope scope(step.context);
    const AttentionRows rows = projection_.Project(step, x, scope);
    const OvqArgs args = {config_, state_, step.seqs, step.where, rows};
    Dispatch<OvqAttentionRef, OvqAttentionCpu, OvqAttentionCuda>(step.context, args);
    projection_.Output(step.context, rows, y);
  }

  std::vector<StateExtent> Overwrites(const LayerState& where,
                                      const TokenRange& tokens) const override {
    return state_.Overwrites(where, tokens);
  }

 private:
  OvqConfig config_;
  OvqState state_;
  AttentionProjection projection_;
};

}  // namespace

Growth GrowsByChunk(int chunk_len, int64_t default_slot_cap) {
  return {.name = absl::StrCat("n(t) = floor(t N / (t + N)) by chunks of ", chunk_len),
          .live =
              [chunk_len](int64_t position, int64_t slot_cap) {
                return CentroidsAt(position / chunk_len * chunk_len, slot_cap);
              },
          .period = chunk_len,
          .default_slot_cap = default_slot_cap};
}

OvqState::OvqState(const OvqConfig& config)
    : n_kv_heads_(config.shape.n_kv_heads),
      chunk_len_(config.chunk_len),
      pending_blocks_(BlocksOf(config.chunk_len)) {
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
  layout_.growth = GrowsByChunk(chunk_len_, config.default_slot_cap);
  layout_.span = chunk_len_;
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

std::vector<StateExtent> OvqState::Overwrites(const LayerState& where,
                                              const TokenRange& tokens) const {
  const OvqPlaces places = Places(where);
  const int64_t first = tokens.begin % chunk_len_, n = tokens.end - tokens.begin;
  std::vector<StateExtent> extents;
  for (const StatePlace& place : {places.pending_keys, places.pending_values}) {
    for (int head = 0; head < n_kv_heads_; ++head) {
      for (int64_t b = first / kBlockSlots; b <= (first + n - 1) / kBlockSlots; ++b) {
        extents.push_back(place.ExtentOf(head, b, place.index_stride));
      }
    }
  }
  for (const StatePlace& place : {places.best_score, places.best_slot}) {
    for (int head = 0; head < n_kv_heads_; ++head) {
      extents.push_back(place.ExtentOf(head, first, static_cast<size_t>(n) * place.index_stride));
    }
  }
  if (tokens.end % chunk_len_ != 0) return extents;
  const int64_t live = layout_.growth.live(tokens.end, tokens.slot_cap);
  for (int64_t b = 0; b < BlocksOf(live); ++b) {
    extents.push_back(places.counts.ExtentOf(0, b, layout_.block.bytes()));
  }
  return extents;
}

absl::StatusOr<MixerState> OvqAttentionState(const StateSpec& spec) {
  absl::Status status;
  const OvqConfig config = ReadConfig(spec, status);
  if (!status.ok()) return status;
  return OvqState(config).layout();
}

absl::StatusOr<std::unique_ptr<SequenceMixer>> MakeOvqAttention(const MixerSpec& spec) {
  absl::Status status;
  OvqConfig config = ReadConfig(spec.state, status);
  config.layer = spec.layer;
  if (!status.ok()) return status;
  AttentionProjection projection(spec, config.shape, /*rope_theta=*/0);
  if (!spec.weights.status().ok()) return spec.weights.status();
  return std::make_unique<OvqMixer>(config, std::move(projection));
}

}  // namespace ovq
