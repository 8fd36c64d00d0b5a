// The reference of softmax attention, OVQ paper eq. 1, in double. For one head, with q_t [head_dim]
// (times beta), k_s [head_dim] and v_s [value_head_dim] of positions s in (t - window, t], or in
// [0, t]:
//   o_t = sum_s softmax_s(q_t . k_s) v_s
#include <algorithm>
#include <vector>

#include "tests/reference/mixers/attention_ref.h"

namespace ovq::kernels {

void SoftmaxAttentionRef(const AttentionArgs& args) {
  const int32_t window = args.blocks.window;
  ForEachTokenRef(args, [&](const TokenRef& token) {
    StoreTokenRef(args, token, KeyRef(args, token), token.position);
    const int64_t oldest = window == 0 ? 0 : std::max<int64_t>(0, token.position + 1 - window);
    std::vector<SlotRef> slots;
    for (int64_t t = oldest; t <= token.position; ++t) {
      slots.push_back(RecentSlotRef(args, token, t));
    }
    AttendTokenRef(args, token, slots);
  });
}

}  // namespace ovq::kernels
