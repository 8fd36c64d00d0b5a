// FoldSegmentCpu (block_attention.h) for any instruction set: of segments a, then b,
//   m = max(m_a, m_b),  l = l_a e^(m_a - m) + l_b e^(m_b - m),  acc likewise.
#include "kernels/mixers/common/block_attention.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/mixers/common/fold_segment_cpu.cc"
#include "kernels/common/highway_targets.h"
//
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
//
#include "hwy/contrib/math/math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace ovq::kernels::HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

void FoldSegment(const BlockAttention& tile, const SegmentSums& next, const SegmentSums& total) {
  const hn::CappedTag<float, kValueAlignment> d;
  using V = hn::Vec<decltype(d)>;
  for (int r = 0; r < tile.n_queries; ++r) {
    const float max = HWY_MAX(total.max[r], next.max[r]);
    const V of_total = hn::Exp(d, hn::Set(d, total.max[r] - max)),
            of_next = hn::Exp(d, hn::Set(d, next.max[r] - max));
    total.max[r] = max;
    total.sum[r] = total.sum[r] * hn::GetLane(of_total) + next.sum[r] * hn::GetLane(of_next);
    float* to = total.out + static_cast<size_t>(r) * tile.value_stride;
    const float* from = next.out + static_cast<size_t>(r) * tile.value_stride;
    for (int c = 0; c < tile.value_stride; c += static_cast<int>(hn::Lanes(d))) {
      const V before = hn::Mul(hn::LoadU(d, to + c), of_total);
      hn::StoreU(hn::MulAdd(hn::LoadU(d, from + c), of_next, before), d, to + c);
    }
  }
  for (int r = 0; r < tile.n_probes; ++r) {
    if (!(next.best_score[r] > total.best_score[r])) continue;
    total.best_score[r] = next.best_score[r];
    total.best_slot[r] = next.best_slot[r];
  }
}

}  // namespace
}  // namespace ovq::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace ovq::kernels {

HWY_EXPORT(FoldSegment);

void FoldSegmentCpu(const BlockAttention& tile, const SegmentSums& next, const SegmentSums& total) {
  HWY_DYNAMIC_DISPATCH(FoldSegment)(tile, next, total);
}

}  // namespace ovq::kernels
#endif  // HWY_ONCE
