// LoadWide loads elements as vectors of float; widening bfloat16 is exact. For files that Highway
// compiles once for each instruction set.
#include <cstdint>

#include "kernels/common/highway_targets.h"
#include "kernels/common/tensor.h"

// The include guard of Highway's -inl.h files: once for each target.
#if defined(OVQ_COMMON_LOAD_WIDE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef OVQ_COMMON_LOAD_WIDE_INL_H_
#undef OVQ_COMMON_LOAD_WIDE_INL_H_
#else
#define OVQ_COMMON_LOAD_WIDE_INL_H_
#endif

#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace ovq::kernels::HWY_NAMESPACE {

// d is a float tag. p need not be aligned.
template <class D>
HWY_INLINE hwy::HWY_NAMESPACE::Vec<D> LoadWide(D d, const float* p) {
  return hwy::HWY_NAMESPACE::LoadU(d, p);
}
template <class D>
HWY_INLINE hwy::HWY_NAMESPACE::Vec<D> LoadWide(D d, const BF16* p) {
  namespace hn = hwy::HWY_NAMESPACE;
  const hn::Rebind<uint16_t, D> d16;
  const hn::Rebind<uint32_t, D> d32;
  const auto bits = hn::PromoteTo(d32, hn::LoadU(d16, reinterpret_cast<const uint16_t*>(p)));
  return hn::BitCast(d, hn::ShiftLeft<16>(bits));
}

}  // namespace ovq::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
