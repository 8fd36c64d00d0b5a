// The host executor's version of the header of the same path: every access is checked
// (tests/simt/README.md).
#pragma once

#include <compare>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "tests/simt/block.h"

namespace ovq::kernels::cuda {

template <class T>
class SharedPtr;

// An element in shared memory.
template <class T>
class SharedRef {
 public:
  using Value = std::remove_const_t<T>;
  explicit SharedRef(int64_t offset) : offset_(offset) {}
  SharedRef(const SharedRef&) = default;

  __attribute__((noinline)) operator Value() const {
    simt::Executor& executor = simt::Executor::Get();
    const void* address = __builtin_return_address(0);
    Value value;
    const void* from = executor.Shared(offset_, sizeof(T), alignof(T), address);
    executor.CheckRead(offset_, sizeof(T), false, address);
    std::memcpy(&value, from, sizeof(T));
    return value;
  }
  __attribute__((noinline)) const SharedRef& operator=(const Value& value) const
      requires(!std::is_const_v<T>) {
    simt::Executor& executor = simt::Executor::Get();
    const void* address = __builtin_return_address(0);
    void* to = executor.Shared(offset_, sizeof(T), alignof(T), address);
    executor.CheckWrite(offset_, sizeof(T), address);
    std::memcpy(to, &value, sizeof(T));
    return *this;
  }
  const SharedRef& operator=(const SharedRef& other) const requires(!std::is_const_v<T>) {
    return *this = static_cast<Value>(other);
  }
  const SharedRef& operator+=(const Value& v) const { return *this = Value(Read() + v); }
  const SharedRef& operator-=(const Value& v) const { return *this = Value(Read() - v); }
  const SharedRef& operator*=(const Value& v) const { return *this = Value(Read() * v); }
  const SharedRef& operator/=(const Value& v) const { return *this = Value(Read() / v); }
  const SharedRef& operator|=(const Value& v) const { return *this = Value(Read() | v); }
  const SharedRef& operator&=(const Value& v) const { return *this = Value(Read() & v); }
  const SharedRef& operator^=(const Value& v) const { return *this = Value(Read() ^ v); }
  SharedPtr<T> operator&() const { return SharedPtr<T>(offset_); }

 private:
  Value Read() const { return *this; }
  int64_t offset_;
};

template <class T>
class SharedPtr {
 public:
  SharedPtr() = default;
  explicit SharedPtr(int64_t offset) : offset_(offset) {}
  // To a pointer to const.
  template <class From>
  requires(std::is_same_v<const From, T>) SharedPtr(SharedPtr<From> other)
      : offset_(other.offset()) {}

  SharedRef<T> operator[](int64_t i) const { return SharedRef<T>(offset_ + i * kSize); }
  SharedRef<T> operator*() const { return SharedRef<T>(offset_); }
  SharedPtr operator+(int64_t n) const { return SharedPtr(offset_ + n * kSize); }
  friend SharedPtr operator+(int64_t n, SharedPtr p) { return p + n; }
  SharedPtr operator-(int64_t n) const { return SharedPtr(offset_ - n * kSize); }
  int64_t operator-(SharedPtr other) const { return (offset_ - other.offset_) / kSize; }
  SharedPtr& operator+=(int64_t n) { return *this = *this + n; }
  SharedPtr& operator-=(int64_t n) { return *this = *this - n; }
  SharedPtr& operator++() { return *this += 1; }
  SharedPtr& operator--() { return *this -= 1; }
  SharedPtr operator++(int) {
    const SharedPtr before = *this;
    ++*this;
    return before;
  }
  auto operator<=>(const SharedPtr&) const = default;

  int64_t offset() const { return offset_; }
  // Returns the element's address after the checks for an atomic access.
  __attribute__((noinline)) void* ForAtomic() const {
    const void* address = __builtin_return_address(0);
    void* at = simt::Executor::Get().Shared(offset_, sizeof(T), alignof(T), address);
    simt::Executor::Get().CheckAtomic(offset_, sizeof(T), address);
    return at;
  }

 private:
  static constexpr int64_t kSize = sizeof(T);
  int64_t offset_ = -1;
};

template <class T>
SharedPtr<T> DynamicShared(uint32_t byte_offset) {
  return SharedPtr<T>(byte_offset);
}

template <class To, class From>
SharedPtr<To> SharedCast(SharedPtr<From> from) {
  static_assert(std::is_const_v<To> || !std::is_const_v<From>, "casts const away");
  return SharedPtr<To>(from.offset());
}

}  // namespace ovq::kernels::cuda

#include "tests/simt/atomics.h"
