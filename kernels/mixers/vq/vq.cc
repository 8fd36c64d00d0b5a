#include "kernels/mixers/vq/vq.h"

#include <vector>

#include "kernels/common/dispatch.h"

namespace ovq {
namespace {

enum Field { kCounts, kLogCounts, kValues, kPendingCode, kPendingValues };

class VqMixer final : public SequenceMixer {
 public:
  VqMixer(const AttentionShape& shape, Codebook codebook, AttentionProjection projection)
      : shape_(shape),
        codebook_(std::move(codebook)),
        state_(shape, codebook_.n_codes),
        projection_(std::move(projection)) {}

  const MixerState& state() const override { return state_.layout(); }
  size_t weight_bytes() const override { return projection_.bytes() + codebook_.keys.bytes(); }

  void Forward(const LayerStep& step, TensorView x, TensorView y) const override {
    ScratchScope scope(step.context);
    const AttentionRows rows = projection_.Project(step, x, scope);
    const VqArgs args = {shape_, codebook_, state_, step.seqs, step.where, rows};
    Dispatch<VqAttentionRef, VqAttentionCpu, VqAttentionCuda>(step.context, args);
    projection_.Output(step.context, rows, y);
  }

  std::vector<StateExtent> Overwrites(const LayerState& where,
                                      const TokenRange& tokens) const override {
    return state_.Overwrites(where, tokens);
  }

 private:
  AttentionShape shape_;
  Codebook codebook_;
  VqState state_;
  AttentionProjection projection_;
};

// codes [n_kv_heads, n_codes, head_dim] to blocks of 64, transposed.
Codebook Pack(const std::vector<float>& codes, const AttentionShape& shape, int64_t n_codes,
              DeviceContext& context) {
  Codebook book;
  book.n_codes = n_codes;
  const int64_t heads = shape.n_kv_heads, d = shape.head_dim, slots = book.blocks() * kBlockSlots;
  std::vector<float> keys(static_cast<size_t>(heads * slots * d));
  std::vector<float> half_norm(static_cast<size_t>(heads * slots));
  for (int64_t h = 0; h < heads; ++h) {
    for (int64_t j = 0; j < n_codes; ++j) {
      const float* code = codes.data() + (h * n_codes + j) * d;
      float* block = keys.data() + (h * slots + j / kBlockSlots * kBlockSlots) * d;
      double norm = 0;
      for (int64_t i = 0; i < d; ++i) norm += static_cast<double>(code[i]) * code[i];
      half_norm[h * slots + j] = static_cast<float>(norm / 2);
      StoreKey(code, shape.head_dim, DType::kF32, block, static_cast<int>(j % kBlockSlots));
    }
  }
  book.keys = context.Upload(keys.data(), keys.size() * sizeof(float));
  book.half_norm = context.Upload(half_norm.data(), half_norm.size() * sizeof(float));
  return book;
}

struct VqConfig {
  AttentionShape shape;
  int64_t n_codes;
};

absl::StatusOr<VqConfig> ReadConfig(const StateSpec& spec) {
  AttrReader model(spec.model), section(spec.section);
  const VqConfig config = {.shape = ReadAttentionShape(model),
                           .n_codes = section.Int("codebook_size", 1, 1 << 20)};
  absl::Status status = model.status();
  status.Update(section.status());
  if (!status.ok()) return status;
  return config;
}

}  // namespace

VqState::VqState(const AttentionShape& shape, int64_t n_codes)
    : n_kv_heads_(shape.n_kv_heads),
      slots_(BlocksOf(n_codes) * kBlockSlots),
      value_stride_(ValueStride(shape.value_head_dim)) {
  const int64_t heads = shape.n_kv_heads;
  layout_.fixed = StateFields({{"counts", DType::kU32, {heads, slots_}},
                               {"log_counts", DType::kF32, {heads, slots_}},
                               {"values", DType::kF32, {heads, slots_, value_stride_}},
                               {"pending_code", DType::kI32, {heads, kVqChunk}},
                               {"pending_values", DType::kF32, {heads, kVqChunk, value_stride_}}});
  layout_.span = kVqChunk;
}

VqPlaces VqState::Places(const LayerState& where) const {
  const auto at = [&](Field field, int64_t per_head, int64_t per_index) {
    return StatePlace{where.fixed_offset + layout_.fixed.offset(field),
                      static_cast<size_t>(per_head) * sizeof(float),
                      static_cast<size_t>(per_index) * sizeof(float)};
  };
  return {.counts = at(kCounts, slots_, 1),
          .log_counts = at(kLogCounts, slots_, 1),
          .values = at(kValues, slots_ * value_stride_, kBlockSlots * value_stride_),
          .pending_code = at(kPendingCode, kVqChunk, 1),
          .pending_values = at(kPendingValues, kVqChunk * value_stride_, kVqChunk * value_stride_)};
}

VqHead VqState::Head(std::byte* session, const LayerState& where, int kv_head) const {
  const VqPlaces places = Places(where);
  return {
      .counts = reinterpret_cast<uint32_t*>(places.counts.At(session, kv_head)),
      .log_counts = reinterpret_cast<float*>(places.log_counts.At(session, kv_head)),
      .values = reinterpret_cast<float*>(places.values.At(session, kv_head)),
      .pending_code = reinterpret_cast<int32_t*>(places.pending_code.At(session, kv_head)),
      .pending_values = reinterpret_cast<float*>(places.pending_values.At(session, kv_head)),
  };
}

std::vector<StateExtent> VqState::Overwrites(const LayerState& where,
                                             const TokenRange& tokens) const {
  // The end of a chunk may touch any code's count and mean.
  if (tokens.end % kVqChunk == 0) return {{where.fixed_offset, layout_.fixed.bytes()}};
  const VqPlaces places = Places(where);
  std::vector<StateExtent> extents;
  for (int head = 0; head < n_kv_heads_; ++head) {
    for (const StatePlace& place : {places.pending_code, places.pending_values}) {
      extents.push_back(place.ExtentOf(head, 0, place.head_stride));
    }
  }
  return extents;
}

absl::StatusOr<MixerState> VqAttentionState(const StateSpec& spec) {
  absl::StatusOr<VqConfig> config = ReadConfig(spec);
  if (!config.ok()) return config.status();
  return VqState(config->shape, config->n_codes).layout();
}

absl::StatusOr<std::unique_ptr<SequenceMixer>> MakeVqAttention(const MixerSpec& spec) {
  absl::StatusOr<VqConfig> config = ReadConfig(spec.state);
  if (!config.ok()) return config.status();
  const AttentionShape& shape = config->shape;
  const TensorView codes =
      spec.weights.Take("self_attn.codebook", {shape.n_kv_heads, config->n_codes, shape.head_dim});
  AttentionProjection projection(spec, shape, /*rope_theta=*/0);
  if (!spec.weights.status().ok()) return spec.weights.status();
  return std::make_unique<VqMixer>(
      shape, Pack(ToFloats(codes), shape, config->n_codes, spec.context), std::move(projection));
}

}  // namespace ovq
