// The ground truth of attention over a codebook, OVQ paper eq. 3-6, in double. Of one head, with
// codes C [n_codes, head_dim], counts c, mean values V [n_codes, value_head_dim] and the chunk's
// keys as codes:
//   o_t = softmax([q_t C^T + ln c | q_t C_z^T]) [V | V_z],  z(k) = argmin_j |k - C_j|
// and at the chunk's end  V_j += sum (v_i - V_j) / c_j  over the values whose key has code j.
#include <cmath>
#include <limits>
#include <vector>

#include "kernels/mixers/common/attention_ref.h"
#include "kernels/mixers/common/block_attention.h"
#include "kernels/mixers/vq/vq.h"

namespace ovq {
namespace {

// argmin |key - code|^2 = argmax key . code - |code|^2 / 2, ties to the lowest code.
int32_t NearestCode(const VqStep& step, const TokenRef& token) {
  const int32_t n_codes = step.blocks.fixed_live;
  const float* half_norm = step.half_norm + token.kv_head * BlocksOf(n_codes) * kBlockSlots;
  double best = -std::numeric_limits<double>::infinity();
  int32_t nearest = 0;
  for (int32_t j = 0; j < n_codes; ++j) {
    const SlotRef code = DictionarySlotRef(step, token, j);
    const double score = DotSlotRef(KeyRef(step, token), code.keys, DType::kF32,
                                    step.blocks.shape.head_dim, code.slot) -
                         half_norm[j];
    if (score > best) {
      best = score;
      nearest = j;
    }
  }
  return nearest;
}

void PassToken(const VqStep& step, const TokenRef& token, int offset, int32_t* code_of) {
  code_of[offset] = NearestCode(step, token);
  std::vector<SlotRef> slots;
  for (int32_t j = 0; j < step.blocks.fixed_live; ++j) {
    slots.push_back(DictionarySlotRef(step, token, j));
    if (std::isinf(slots.back().bias)) slots.pop_back();  // ln 0
  }
  // The chunk's keys as codes, in a block of their own beside their values.
  std::vector<float> key(static_cast<size_t>(step.blocks.shape.head_dim));
  for (int i = 0; i <= offset; ++i) {
    const SlotRef code = DictionarySlotRef(step, token, code_of[i]),
                  to = RecentSlotRef(step, token, i);
    LoadKey(code.keys, DType::kF32, step.blocks.shape.head_dim, code.slot, key.data());
    StoreKey(key.data(), step.blocks.shape.head_dim, DType::kF32, const_cast<void*>(to.keys), i);
    slots.push_back(to);
  }
  StoreTokenRef(step, token, key.data(), offset);
  AttendTokenRef(step, token, slots);
}

void MergeChunk(const VqStep& step, const TokenRef& token, const int32_t* code_of) {
  float* log_counts = step.blocks.log_counts.At<float>(token.session, token.kv_head);
  for (int32_t j = 0; j < step.blocks.fixed_live; ++j) {
    std::vector<int> members;
    for (int i = 0; i < kVqChunk; ++i) {
      if (code_of[i] == j) members.push_back(i);
    }
    if (members.empty()) continue;
    log_counts[j] = std::log(static_cast<float>(MergeSlotRef(step, token, j, members)));
  }
}

}  // namespace

void VqAttentionRef(DeviceContext&, const VqStep& step) {
  ForEachTokenRef(step, [&](const TokenRef& token) {
    const int offset = static_cast<int>(token.position % kVqChunk);
    int32_t* code_of = step.blocks.best_slot.At<int32_t>(token.session, token.kv_head);
    PassToken(step, token, offset, code_of);
    if (offset + 1 == kVqChunk) MergeChunk(step, token, code_of);
  });
}

}  // namespace ovq
