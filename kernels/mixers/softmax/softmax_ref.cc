// The ground truth of softmax attention, OVQ paper eq. 1, in double. Of one head, q [head_dim]
// (times beta), k [head_dim], v [value_head_dim] of position s in (t - window, t], or in [0, t]:
//   o_t = sum_s softmax_s(q_t . k_s) v_s
#include <algorithm>
#include <vector>

#include "kernels/mixers/common/attention_ref.h"
#include "kernels/mixers/softmax/softmax.h"

namespace ovq {
namespace {

void AttendToken(const SoftmaxArgs& args, std::byte* session, int kv_head, int64_t row,
                 int64_t position) {
  const AttentionShape& shape = args.shape;
  const DType dtype = args.state.dtype();
  const int64_t block = position / kBlockSlots;
  const int slot = static_cast<int>(position % kBlockSlots);
  StoreKey(args.rows.k + row * args.rows.stride + int64_t{kv_head} * shape.head_dim, shape.head_dim,
           dtype, args.state.keys(session, args.where, block, kv_head), slot);
  StoreValue(args.rows.v + row * args.rows.stride + int64_t{kv_head} * shape.value_head_dim,
             shape.value_head_dim, ValueStride(shape.value_head_dim), dtype,
             args.state.values(session, args.where, block, kv_head), slot);

  const int64_t oldest = args.window == 0 ? 0 : std::max<int64_t>(0, position + 1 - args.window);
  std::vector<SlotRef> slots;
  for (int64_t t = oldest; t <= position; ++t) {
    const int64_t b = t / kBlockSlots;
    slots.push_back({args.state.keys(session, args.where, b, kv_head),
                     args.state.values(session, args.where, b, kv_head),
                     static_cast<int>(t % kBlockSlots), 0});
  }
  AttendHeadsRef(shape, args.rows, row, kv_head, slots, dtype);
}

}  // namespace

void SoftmaxAttentionRef(DeviceContext&, const SoftmaxArgs& args) {
  ForEachTokenRef(args.seqs, args.shape.n_kv_heads, [&](const TokenRef& at) {
    AttendToken(args, at.session, at.kv_head, at.row, at.position);
  });
}

}  // namespace ovq
