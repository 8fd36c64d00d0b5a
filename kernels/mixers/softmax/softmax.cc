#include "kernels/mixers/softmax/softmax.h"

#include <algorithm>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "kernels/common/dispatch.h"

namespace ovq {
namespace {

enum Field { kKeys, kValues };

class SoftmaxMixer final : public SequenceMixer {
 public:
  SoftmaxMixer(const AttentionShape& shape, int32_t window, DType state_dtype,
               AttentionProjection projection)
      : shape_(shape),
        window_(window),
        state_(shape, window, state_dtype),
        projection_(std::move(projection)) {}

  const MixerState& state() const override { return state_.layout(); }
  size_t weight_bytes() const override { return projection_.bytes(); }

  void Forward(const StepSeqs& seqs, TensorView x, const LayerState& where, DeviceContext& context,
               TensorView y) const override {
    ScratchScope scope(context);
    const AttentionRows rows = projection_.Project(context, seqs, x, scope);
    const SoftmaxArgs args = {shape_, window_, state_, seqs, where, rows};
    Dispatch<SoftmaxAttentionRef, SoftmaxAttentionCpu, SoftmaxAttentionCuda>(context, args);
    projection_.Output(context, rows, y);
  }

 private:
  AttentionShape shape_;
  int32_t window_;
  SoftmaxState state_;
  AttentionProjection projection_;
};

absl::StatusOr<int32_t> ReadWindow(const StateSpec& spec) {
  absl::StatusOr<int64_t> window = spec.model.Int("sliding_window", 1, 1 << 24);
  if (!window.ok()) return window.status();
  return static_cast<int32_t>(*window);
}

absl::StatusOr<MixerState> StateOf(const StateSpec& spec, int32_t window) {
  absl::StatusOr<AttentionShape> shape = ReadAttentionShape(spec.model);
  if (!shape.ok()) return shape.status();
  return SoftmaxState(*shape, window, spec.state_dtype).layout();
}

absl::StatusOr<std::unique_ptr<SequenceMixer>> Make(const MixerSpec& spec, int32_t window,
                                                    double rope_theta) {
  absl::StatusOr<AttentionShape> shape = ReadAttentionShape(spec.state.model);
  if (!shape.ok()) return shape.status();
  absl::StatusOr<AttentionProjection> projection =
      AttentionProjection::Make(spec, *shape, rope_theta);
  if (!projection.ok()) return projection.status();
  return std::make_unique<SoftmaxMixer>(*shape, window, spec.state.state_dtype,
                                        *std::move(projection));
}

}  // namespace

SoftmaxState::SoftmaxState(const AttentionShape& shape, int32_t window, DType dtype)
    : n_kv_heads_(shape.n_kv_heads),
      window_(window),
      dtype_(dtype),
      ring_blocks_(window == 0 ? 0 : 1 + BlocksFor(window - 1)) {
  const int value_stride = ValueStride(shape.value_head_dim);
  key_bytes_ = static_cast<size_t>(shape.head_dim) * kBlockSlots * DTypeBytes(dtype);
  value_bytes_ = static_cast<size_t>(value_stride) * kBlockSlots * DTypeBytes(dtype);
  const int64_t blocks = int64_t{shape.n_kv_heads} * std::max<int64_t>(ring_blocks_, 1);
  StateFields fields({{"keys", dtype, {blocks, shape.head_dim, kBlockSlots}},
                      {"values", dtype, {blocks, kBlockSlots, value_stride}}});
  if (window > 0) {
    layout_.fixed = std::move(fields);
  } else {
    layout_.growth = {.law = Growth::Law::kTokens};
    layout_.block = std::move(fields);
  }
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

absl::StatusOr<MixerState> SlidingAttentionState(const StateSpec& spec) {
  absl::StatusOr<int32_t> window = ReadWindow(spec);
  if (!window.ok()) return window.status();
  return StateOf(spec, *window);
}

absl::StatusOr<MixerState> FullAttentionState(const StateSpec& spec) {
  return StateOf(spec, /*window=*/0);
}

absl::StatusOr<std::unique_ptr<SequenceMixer>> MakeSlidingAttention(const MixerSpec& spec) {
  absl::StatusOr<int32_t> window = ReadWindow(spec.state);
  if (!window.ok()) return window.status();
  absl::StatusOr<double> theta = spec.state.model.FloatOr("rope_theta", 10000.0, 1.0, 1e12);
  if (!theta.ok()) return theta.status();
  absl::StatusOr<int64_t> head_dim = spec.state.model.Int("head_dim", 1, 1 << 20);
  if (!head_dim.ok()) return head_dim.status();
  if (*head_dim % 2 != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("head_dim: expected an even number for RoPE, got ", *head_dim));
  }
  return Make(spec, *window, *theta);
}

absl::StatusOr<std::unique_ptr<SequenceMixer>> MakeFullAttention(const MixerSpec& spec) {
  return Make(spec, /*window=*/0, /*rope_theta=*/0);
}

}  // namespace ovq
