// Atomics on global and on shared memory. Kernels run on one operating system thread, so that a
// plain read and write will do.
#pragma once

#include <concepts>
#include <type_traits>

#include "kernels/common/cuda/shared.cuh"

namespace ovq::simt {

template <class T>
concept AtomicInteger =
    std::same_as<T, int> || std::same_as<T, unsigned> || std::same_as<T, unsigned long long>;

template <class T, class Change>
T Atomic(T* p, Change change) {
  const T old = *p;
  *p = change(old);
  return old;
}

template <class T, class Change>
T Atomic(kernels::cuda::SharedPtr<T> p, Change change) {
  T* at = static_cast<T*>(p.ForAtomic());
  const T old = *at;
  *at = change(old);
  return old;
}

template <class T>
T Sum(T a, T b) {
  if constexpr (std::is_same_v<T, int>) {
    return static_cast<int>(static_cast<unsigned>(a) + static_cast<unsigned>(b));
  } else {
    return a + b;
  }
}

}  // namespace ovq::simt

#define OVQ_SIMT_ATOMIC(name, constraint, result)                                                  \
  template <class T>                                                                               \
  requires(constraint) T name(T* p, std::type_identity_t<T> value) {                               \
    return ovq::simt::Atomic(p, [&]([[maybe_unused]] T old) -> T { return result; });              \
  }                                                                                                \
  template <class T>                                                                               \
  requires(constraint) T name(ovq::kernels::cuda::SharedPtr<T> p, std::type_identity_t<T> value) { \
    return ovq::simt::Atomic(p, [&]([[maybe_unused]] T old) -> T { return result; });              \
  }

OVQ_SIMT_ATOMIC(atomicAdd,
                (ovq::simt::AtomicInteger<T> || std::same_as<T, float> || std::same_as<T, double>),
                ovq::simt::Sum(old, value))
OVQ_SIMT_ATOMIC(atomicMax, ovq::simt::AtomicInteger<T>, old < value ? value : old)
OVQ_SIMT_ATOMIC(atomicMin, ovq::simt::AtomicInteger<T>, value < old ? value : old)
OVQ_SIMT_ATOMIC(atomicExch, (ovq::simt::AtomicInteger<T> || std::same_as<T, float>), value)
OVQ_SIMT_ATOMIC(atomicOr, ovq::simt::AtomicInteger<T>, old | value)
OVQ_SIMT_ATOMIC(atomicAnd, ovq::simt::AtomicInteger<T>, old& value)
OVQ_SIMT_ATOMIC(atomicXor, ovq::simt::AtomicInteger<T>, old ^ value)
#undef OVQ_SIMT_ATOMIC

template <ovq::simt::AtomicInteger T>
T atomicCAS(T* p, std::type_identity_t<T> compare, std::type_identity_t<T> value) {
  return ovq::simt::Atomic(p, [&](T old) { return old == compare ? value : old; });
}
template <ovq::simt::AtomicInteger T>
T atomicCAS(ovq::kernels::cuda::SharedPtr<T> p, std::type_identity_t<T> compare,
            std::type_identity_t<T> value) {
  return ovq::simt::Atomic(p, [&](T old) { return old == compare ? value : old; });
}
