// Attention over a codebook on the CPU, OVQ paper eq. 3-6. For one head with codes C [n_codes,
// head_dim], counts c [n_codes], means V [n_codes, value_head_dim] and code z(k) = argmin_j |k -
// C_j|:
//   o_t = softmax([q_t C^T + ln c | q_t C_z^T]) [V | V_z]    z: codes of the chunk's keys up to t
//   at a chunk's end   V_j += sum_i (v_i - V_j) / c_j        over the values i whose key has code j
#include <algorithm>
#include <limits>

#include "kernels/mixers/common/block_attention.h"
#include "kernels/mixers/vq/vq.h"

namespace ovq::kernels {
namespace {

// argmin |key - code|^2 = argmax key . code - |code|^2 / 2, ties to the lowest code.
int32_t NearestCode(const VqAttentionArgs& args, int kv_head, const float* key) {
  float best = -std::numeric_limits<float>::infinity();
  int32_t nearest = 0;
  const int32_t n_codes = args.blocks.fixed_live;
  const float* half_norm = args.half_norm + kv_head * NumBlocks(n_codes) * kBlockSlots;
  for (int32_t first = 0; first < n_codes; first += kBlockSlots) {
    float scores[kBlockSlots];
    ScoreBlockCpu(key, CodeAt(args.blocks, kv_head, first), DType::kF32, args.blocks.shape.head_dim,
                  scores);
    for (int32_t j = first; j < std::min(n_codes, first + kBlockSlots); ++j) {
      const float score = scores[j - first] - half_norm[j];
      if (score > best) {
        best = score;
        nearest = j;
      }
    }
  }
  return nearest;
}

// Finds the codes of the tile's keys and fills the scratch blocks that its tokens attend to beside
// the state: the chunk's keys as codes, and the biases.
void Prepare(const VqAttentionArgs& args, const TileTokens& tile) {
  const AttentionBlocks& blocks = args.blocks;
  const int d = blocks.shape.head_dim;
  const int32_t n_codes = blocks.fixed_live;
  int32_t* code = blocks.best_slot.At<int32_t>(tile.session, tile.kv_head);
  for (int t = 0; t < tile.n_tokens; ++t) {
    const float* key =
        args.tokens.k + (tile.row + t) * args.tokens.stride + int64_t{tile.kv_head} * d;
    code[tile.slot + t] = NearestCode(args, tile.kv_head, key);
  }
  float* keys = blocks.recent_keys.At<float>(tile.session, tile.sequence, tile.kv_head, 0);
  std::fill_n(keys, d * kBlockSlots, 0.0f);
  for (int i = 0; i < tile.slot + tile.n_tokens; ++i) {
    const float* from = CodeAt(blocks, tile.kv_head, code[i]);
    for (int c = 0; c < d; ++c) keys[c * kBlockSlots + i] = from[c * kBlockSlots];
  }
  float* bias = blocks.dictionary_bias.At<float>(tile.session, tile.sequence, tile.kv_head, 0);
  const uint32_t* count = blocks.counts.At<uint32_t>(tile.session, tile.kv_head);
  const float* log_count = blocks.log_counts.At<float>(tile.session, tile.kv_head);
  for (int32_t j = 0; j < n_codes; ++j) {
    bias[j] = count[j] > 0 ? log_count[j] : -std::numeric_limits<float>::infinity();
  }
}

}  // namespace

void VqAttentionCpu(DeviceContext& context, const VqAttentionArgs& args) {
  AttendTilesCpu(context, args, [&](const TileTokens& tile) { Prepare(args, tile); }, {});
}

}  // namespace ovq::kernels
