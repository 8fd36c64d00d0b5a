#include "kernels/mixers/vq/vq.h"

#include <vector>

#include "kernels/common/dispatch.h"
#include "kernels/mixers/common/block_attention.h"

namespace ovq::kernels {
namespace {

enum Field { kCounts, kLogCounts, kValues, kPendingCode, kPendingValues };

// The place of floats in blocks, [n_heads][blocks_per_head][per_block].
StatePlace Floats(size_t offset, int64_t blocks_per_head, int64_t per_block) {
  const size_t block = static_cast<size_t>(per_block) * sizeof(float);
  return {offset, static_cast<size_t>(blocks_per_head) * block, block};
}

// Scratch memory with this layout for every sequence of a batch.
BlockPlaces InScratch(ScratchScope& scope, int n_seqs, int64_t n_heads, const StatePlace& place) {
  const size_t bytes = static_cast<size_t>(n_heads) * place.head_stride;
  return {.place = place,
          .shared = scope.Allocate<std::byte>(static_cast<size_t>(n_seqs) * bytes),
          .seq_stride = bytes};
}

}  // namespace

void ReadConfig(const FieldReaders& from, VqConfig& config) {
  ReadAttention(from, config);
  from.section.Int("codebook_size", config.n_codes, 1, 1 << 20);
}

VqAttention::VqAttention(const StateSpec& spec, const VqConfig& config)
    : Attention(spec, config), n_codes_(config.n_codes) {
  dtype = DType::kF32;
  const int64_t heads = shape.n_kv_heads, slots = NumBlocks(n_codes_) * kBlockSlots;
  const int value_stride = ValueStride(shape.value_head_dim);
  SetFixed(
      {{"counts", DType::kU32, {heads, slots}},
       {"log_counts", DType::kF32, {heads, slots}},
       {"values", DType::kF32, {heads, slots, value_stride}},
       {"pending_code", DType::kI32, {heads, kVqChunk}, {0, static_cast<double>(n_codes_ - 1)}},
       {"pending_values", DType::kF32, {heads, kVqChunk, value_stride}}});
  state_.span = kVqChunk;
}

// Repacks codes [n_kv_heads, n_codes_, head_dim] to transposed blocks of 64.
void VqAttention::LoadOwn(const MixerSpec& spec) {
  const int64_t heads = shape.n_kv_heads, d = shape.head_dim;
  const TensorView weights = spec.weights.GetTensor("self_attn.codebook", {heads, n_codes_, d});
  if (!spec.weights.status().ok()) return;
  const std::vector<float> rows = ToFloats(weights);
  const int64_t slots = NumBlocks(n_codes_) * kBlockSlots;
  std::vector<float> keys(static_cast<size_t>(heads * slots * d));
  std::vector<float> norms(static_cast<size_t>(heads * slots));
  for (int64_t h = 0; h < heads; ++h) {
    for (int64_t j = 0; j < n_codes_; ++j) {
      const float* code = rows.data() + (h * n_codes_ + j) * d;
      float* block = keys.data() + (h * slots + j / kBlockSlots * kBlockSlots) * d;
      double norm = 0;
      for (int64_t i = 0; i < d; ++i) norm += static_cast<double>(code[i]) * code[i];
      norms[h * slots + j] = static_cast<float>(norm / 2);
      StoreKey(code, shape.head_dim, DType::kF32, block, static_cast<int>(j % kBlockSlots));
    }
  }
  codes_ = spec.context.Upload(keys);
  half_norm_ = spec.context.Upload(norms);
}

AttentionBlocks VqAttention::Blocks(const LayerState& where) const {
  const int64_t code_blocks = NumBlocks(n_codes_),
                value_block = int64_t{kBlockSlots} * ValueStride(shape.value_head_dim);
  const auto fixed = [&](Field field, int64_t blocks_per_head, int64_t per_block) {
    return Floats(where.fixed_offset + state_.fixed.offset(field), blocks_per_head, per_block);
  };
  AttentionBlocks blocks = NewBlocks();
  blocks.wave_span = kVqChunk;
  blocks.fixed_live = static_cast<int32_t>(n_codes_);
  // All sessions read one codebook.
  blocks.dictionary_keys = {.place = Floats(0, code_blocks, int64_t{kBlockSlots} * shape.head_dim),
                            .shared = codes_.as<std::byte>()};
  blocks.dictionary_values = {fixed(kValues, code_blocks, value_block)};
  blocks.recent_spans = 1;
  blocks.recent_values = {fixed(kPendingValues, 1, value_block)};
  blocks.best_slot = fixed(kPendingCode, kVqChunk, 1);
  blocks.merge = Merge::kValues;
  blocks.counts = fixed(kCounts, code_blocks, kBlockSlots);
  blocks.log_counts = fixed(kLogCounts, code_blocks, kBlockSlots);
  return blocks;
}

void VqAttention::Attend(const LayerArgs& layer_args, const AttentionArgs& args) const {
  ScratchScope scope(layer_args.context);
  const int n_seqs = args.seqs.n_seqs();
  AttentionBlocks blocks = args.blocks;
  blocks.dictionary_bias =
      InScratch(scope, n_seqs, shape.n_kv_heads, Floats(0, NumBlocks(n_codes_), kBlockSlots));
  blocks.recent_keys =
      InScratch(scope, n_seqs, shape.n_kv_heads, Floats(0, 1, int64_t{kVqChunk} * shape.head_dim));
  Dispatch<VqAttentionCpu, VqAttentionCuda>(
      layer_args.context,
      VqAttentionArgs{{blocks, args.seqs, args.tokens}, half_norm_.as<float>()});
}

std::vector<StateExtent> VqAttention::OwnExtents(const LayerState& where,
                                                 const TokenRange& tokens) const {
  // The end of a chunk may touch any code's count and mean.
  if (tokens.end % kVqChunk == 0) return {{where.fixed_offset, own_fixed_bytes}};
  return RecentExtents(Blocks(where), tokens);
}

}  // namespace ovq::kernels
