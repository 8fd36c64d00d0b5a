// The reference of attention over a codebook, OVQ paper eq. 3-6, in double. For one head with codes
// C [n_codes, head_dim], counts c, mean values V [n_codes, value_head_dim] and the chunk's keys as
// codes:
//   o_t = softmax([q_t C^T + ln c | q_t C_z^T]) [V | V_z],  z(k) = argmin_j |k - C_j|
// and at the chunk's end  V_j += sum_i (v_i - V_j) / c_j  over the values i whose key has code j.
#include <cmath>
#include <limits>
#include <vector>

#include "kernels/mixers/common/block_attention.h"
#include "kernels/mixers/vq/vq.h"
#include "tests/reference/mixers/attention_ref.h"
#include "tests/reference/reference_of.h"

namespace ovq::kernels {
namespace {

// argmin |key - code|^2 = argmax key . code - |code|^2 / 2, ties to the lowest code.
int32_t NearestCode(const VqAttentionArgs& args, const TokenRef& token) {
  const int32_t n_codes = args.blocks.fixed_live;
  const float* half_norm = args.half_norm + token.kv_head * NumBlocks(n_codes) * kBlockSlots;
  double best = -std::numeric_limits<double>::infinity();
  int32_t nearest = 0;
  for (int32_t j = 0; j < n_codes; ++j) {
    const SlotRef code = DictionarySlotRef(args, token, j);
    const double score = DotSlotRef(KeyRef(args, token), code.keys, DType::kF32,
                                    args.blocks.shape.head_dim, code.slot) -
                         half_norm[j];
    if (score > best) {
      best = score;
      nearest = j;
    }
  }
  return nearest;
}

void PassToken(const VqAttentionArgs& args, const TokenRef& token, int offset, int32_t* code_of) {
  code_of[offset] = NearestCode(args, token);
  std::vector<SlotRef> slots;
  for (int32_t j = 0; j < args.blocks.fixed_live; ++j) {
    slots.push_back(DictionarySlotRef(args, token, j));
    if (std::isinf(slots.back().bias)) slots.pop_back();  // ln 0
  }
  // The chunk's keys as codes are in a block of their own, beside their values.
  std::vector<float> key(static_cast<size_t>(args.blocks.shape.head_dim));
  for (int i = 0; i <= offset; ++i) {
    const SlotRef code = DictionarySlotRef(args, token, code_of[i]),
                  to = RecentSlotRef(args, token, i);
    LoadKey(code.keys, DType::kF32, args.blocks.shape.head_dim, code.slot, key.data());
    StoreKey(key.data(), args.blocks.shape.head_dim, DType::kF32, const_cast<void*>(to.keys), i);
    slots.push_back(to);
  }
  StoreTokenRef(args, token, key.data(), offset);
  AttendTokenRef(args, token, slots);
}

void MergeChunk(const VqAttentionArgs& args, const TokenRef& token, const int32_t* code_of) {
  float* log_counts = args.blocks.log_counts.At<float>(token.session, token.kv_head);
  for (int32_t j = 0; j < args.blocks.fixed_live; ++j) {
    std::vector<int> members;
    for (int i = 0; i < kVqChunk; ++i) {
      if (code_of[i] == j) members.push_back(i);
    }
    if (members.empty()) continue;
    log_counts[j] = std::log(static_cast<float>(MergeSlotRef(args, token, j, members)));
  }
}

}  // namespace

void VqAttentionRef(DeviceContext&, const VqAttentionArgs& args) {
  ForEachTokenRef(args, [&](const TokenRef& token) {
    const int offset = static_cast<int>(token.position % kVqChunk);
    int32_t* code_of = args.blocks.best_slot.At<int32_t>(token.session, token.kv_head);
    PassToken(args, token, offset, code_of);
    if (offset + 1 == kVqChunk) MergeChunk(args, token, code_of);
  });
}

const ReferenceOf<VqAttentionCpu> kVq = VqAttentionRef;

}  // namespace ovq::kernels
