// Loads elements of slots (slots.h) as vectors of float, not yet times their scale, and the scales
// of neighbouring slots. For files that Highway compiles once for each instruction set.
#include <cstdint>

#include "kernels/common/highway_targets.h"
#include "kernels/mixers/common/slots.h"

// The include guard of Highway's -inl.h files: once for each target.
#if defined(OVQ_MIXERS_SLOTS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef OVQ_MIXERS_SLOTS_INL_H_
#undef OVQ_MIXERS_SLOTS_INL_H_
#else
#define OVQ_MIXERS_SLOTS_INL_H_
#endif

#include "hwy/highway.h"
//
#include "kernels/common/load_wide-inl.h"

HWY_BEFORE_NAMESPACE();
namespace ovq::kernels::HWY_NAMESPACE {

// d is a float tag. p need not be aligned.
template <class D>
HWY_INLINE hwy::HWY_NAMESPACE::Vec<D> LoadWide(D d, const Int8* p) {
  namespace hn = hwy::HWY_NAMESPACE;
  const hn::Rebind<int8_t, D> d8;
  const hn::Rebind<int32_t, D> d32;
  return hn::ConvertTo(d, hn::PromoteTo(d32, hn::LoadU(d8, reinterpret_cast<const int8_t*>(p))));
}
// The scales of the slots from `slot` on, in a block with that many channels (values: with
// padding).
template <class D, class T>
HWY_INLINE hwy::HWY_NAMESPACE::Vec<D> LoadScales(D d, const T* block, int channels, int slot) {
  namespace hn = hwy::HWY_NAMESPACE;
  const hn::Rebind<uint8_t, D> d8;
  const hn::Rebind<uint32_t, D> d32;
  const auto* exponents = reinterpret_cast<const uint8_t*>(block + kBlockSlots * channels + slot);
  return hn::BitCast(d, hn::ShiftLeft<23>(hn::PromoteTo(d32, hn::LoadU(d8, exponents))));
}

}  // namespace ovq::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
