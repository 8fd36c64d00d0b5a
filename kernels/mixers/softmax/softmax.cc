#include "kernels/mixers/softmax/softmax.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "kernels/common/dispatch.h"

namespace ovq {
namespace {

enum Field { kKeys, kValues };

struct SoftmaxConfig {
  AttentionShape shape;
  int32_t window = 0;     // 0: full attention
  double rope_theta = 0;  // 0: no position encoding
};

absl::StatusOr<SoftmaxConfig> ReadConfig(const StateSpec& spec, bool sliding) {
  AttrReader model(spec.model);
  SoftmaxConfig config;
  config.shape = ReadAttentionShape(model);
  if (sliding) {
    config.window = static_cast<int32_t>(model.Int("sliding_window", 1, 1 << 24));
    config.rope_theta = model.FloatOr("rope_theta", 10000.0, 1.0, 1e15);
    if (config.shape.head_dim % 2 != 0) {
      model.Fail("head_dim",
                 absl::StrCat("expected an even number for RoPE, got ", config.shape.head_dim));
    }
  }
  if (!model.ok()) return model.status();
  return config;
}

class SoftmaxMixer final : public SequenceMixer {
 public:
  SoftmaxMixer(const SoftmaxConfig& config, DType kv_dtype, AttentionProjection projection)
      : shape_(config.shape),
        window_(config.window),
        state_(config.shape, config.window, kv_dtype),
        projection_(std::move(projection)) {}

  const MixerState& state() const override { return state_.layout(); }
  size_t weight_bytes() const override { return projection_.bytes(); }

  void Forward(const LayerStep& step, TensorView x, TensorView y) const override {
    ScratchScope scope(step.context);
    const AttentionRows rows = projection_.Project(step, x, scope);
    const SoftmaxArgs args = {shape_, window_, state_, step.seqs, step.where, rows};
    Dispatch<SoftmaxAttentionRef, SoftmaxAttentionCpu, SoftmaxAttentionCuda>(step.context, args);
    projection_.Output(step.context, rows, y);
  }

  std::vector<StateExtent> Overwrites(const LayerState& where,
                                      const TokenRange& tokens) const override {
    return state_.Overwrites(where, tokens);
  }

 private:
  AttentionShape shape_;
  int32_t window_;
  SoftmaxState state_;
  AttentionProjection projection_;
};

absl::StatusOr<MixerState> StateOf(const StateSpec& spec, bool sliding) {
  absl::StatusOr<SoftmaxConfig> config = ReadConfig(spec, sliding);
  if (!config.ok()) return config.status();
  return SoftmaxState(config->shape, config->window, spec.kv_dtype).layout();
}

absl::StatusOr<std::unique_ptr<SequenceMixer>> Make(const MixerSpec& spec, bool sliding) {
  absl::StatusOr<SoftmaxConfig> config = ReadConfig(spec.state, sliding);
  if (!config.ok()) return config.status();
  AttentionProjection projection(spec, config->shape, config->rope_theta);
  if (!spec.weights.status().ok()) return spec.weights.status();
  return std::make_unique<SoftmaxMixer>(*config, spec.state.kv_dtype, std::move(projection));
}

}  // namespace

SoftmaxState::SoftmaxState(const AttentionShape& shape, int32_t window, DType dtype)
    : n_kv_heads_(shape.n_kv_heads),
      window_(window),
      dtype_(dtype),
      ring_blocks_(window == 0 ? 0 : 1 + BlocksOf(window - 1)) {
  const int value_stride = ValueStride(shape.value_head_dim);
  key_bytes_ = static_cast<size_t>(shape.head_dim) * kBlockSlots * DTypeBytes(dtype);
  value_bytes_ = static_cast<size_t>(value_stride) * kBlockSlots * DTypeBytes(dtype);
  const int64_t blocks = int64_t{shape.n_kv_heads} * std::max<int64_t>(ring_blocks_, 1);
  StateFields fields({{"keys", dtype, {blocks, shape.head_dim, kBlockSlots}},
                      {"values", dtype, {blocks, kBlockSlots, value_stride}}});
  if (window > 0) {
    layout_.fixed = std::move(fields);
  } else {
    layout_.growth = GrowsByToken();
    layout_.block = std::move(fields);
  }
  layout_.span = kBlockSlots;
}

int64_t SoftmaxState::first_block(int64_t block) const {
  return window_ == 0 ? 0 : std::max<int64_t>(0, block + 1 - ring_blocks_);
}

StatePlace SoftmaxState::Place(const LayerState& where, int field, size_t block_bytes) const {
  if (window_ == 0) {
    return {where.blocks_offset + layout_.block.offset(field), block_bytes, where.block_stride};
  }
  return {where.fixed_offset + layout_.fixed.offset(field),
          static_cast<size_t>(ring_blocks_) * block_bytes, block_bytes};
}

StatePlace SoftmaxState::keys_place(const LayerState& where) const {
  return Place(where, kKeys, key_bytes_);
}

StatePlace SoftmaxState::values_place(const LayerState& where) const {
  return Place(where, kValues, value_bytes_);
}

void* SoftmaxState::keys(std::byte* session, const LayerState& where, int64_t block,
                         int kv_head) const {
  return keys_place(where).At(session, kv_head, Index(block));
}

void* SoftmaxState::values(std::byte* session, const LayerState& where, int64_t block,
                           int kv_head) const {
  return values_place(where).At(session, kv_head, Index(block));
}

std::vector<StateExtent> SoftmaxState::Overwrites(const LayerState& where,
                                                  const TokenRange& tokens) const {
  const int64_t block = Index(tokens.begin / kBlockSlots);
  const size_t row = value_bytes_ / kBlockSlots;
  std::vector<StateExtent> extents;
  for (int head = 0; head < n_kv_heads_; ++head) {
    extents.push_back(keys_place(where).ExtentOf(head, block, key_bytes_));
    StateExtent values = values_place(where).ExtentOf(
        head, block, static_cast<size_t>(tokens.end - tokens.begin) * row);
    values.offset += static_cast<size_t>(tokens.begin % kBlockSlots) * row;
    extents.push_back(values);
  }
  return extents;
}

absl::StatusOr<MixerState> SlidingAttentionState(const StateSpec& spec) {
  return StateOf(spec, /*sliding=*/true);
}
absl::StatusOr<MixerState> FullAttentionState(const StateSpec& spec) {
  return StateOf(spec, /*sliding=*/false);
}
absl::StatusOr<std::unique_ptr<SequenceMixer>> MakeSlidingAttention(const MixerSpec& spec) {
  return Make(spec, /*sliding=*/true);
}
absl::StatusOr<std::unique_ptr<SequenceMixer>> MakeFullAttention(const MixerSpec& spec) {
  return Make(spec, /*sliding=*/false);
}

}  // namespace ovq
