// Barriers and warp collectives. The place in the source tells calls apart: lanes meet only where
// they make the very same call.
#pragma once

#include <bit>
#include <concepts>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "tests/simt/block.h"

namespace ovq::simt {

// The executor's fields for a lane's values: 64 bits carry every type.
template <class T>
concept Shuffled = std::is_arithmetic_v<T> &&(sizeof(T) == 4 || sizeof(T) == 8);

struct LaneValue {
  uint64_t in;
  uint32_t source;  // the lane whose value the lane wants
  mutable uint64_t out;
};

template <class T>
uint64_t ToBits(T value) {
  uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof(T));
  return bits;
}

template <class T>
T FromBits(uint64_t bits) {
  T value;
  std::memcpy(&value, &bits, sizeof(T));
  return value;
}

// For Meet: every lane gets its source's value; the lanes whose value is not 0; the lanes whose
// value is its own.
void WriteSources(const void* const* arguments, uint32_t mask);
void WriteBallot(const void* const* arguments, uint32_t mask);
void WriteMatches(const void* const* arguments, uint32_t mask);
[[noreturn]] void FailSource(const char* operation, uint32_t source, Where where);

inline uint32_t Lane() { return Executor::Get().CurrentLane(); }

inline uint64_t Exchange(const char* operation, uint32_t mask, uint64_t value, uint32_t source,
                         Where where, Complete complete) {
  LaneValue lane{value, source, 0};
  Executor::Get().Meet(operation, mask, where, &lane, complete);
  return lane.out;
}
template <class T>
T Shuffle(const char* operation, uint32_t mask, T value, uint32_t source, Where where) {
  if ((mask >> source & 1) == 0) FailSource(operation, source, where);
  return FromBits<T>(Exchange(operation, mask, ToBits(value), source, where, WriteSources));
}
inline uint32_t Ballot(const char* operation, uint32_t mask, bool predicate, Where where) {
  return static_cast<uint32_t>(Exchange(operation, mask, predicate, 0, where, WriteBallot));
}

// Folds the values of the mask's lanes in the order of the lanes.
template <class T, class Fold>
T Reduce(const char* operation, uint32_t mask, T value, Fold, Where where) {
  LaneValue lane{ToBits(value), 0, 0};
  Executor::Get().Meet(operation, mask, where, &lane,
                       [](const void* const* arguments, uint32_t mask) {
                         const auto at = [&](uint32_t rest) {
                           return static_cast<const LaneValue*>(arguments[std::countr_zero(rest)]);
                         };
                         T sum = FromBits<T>(at(mask)->in);
                         for (uint32_t rest = mask & (mask - 1); rest != 0; rest &= rest - 1) {
                           sum = Fold()(sum, FromBits<T>(at(rest)->in));
                         }
                         for (uint32_t rest = mask; rest != 0; rest &= rest - 1) {
                           at(rest)->out = ToBits(sum);
                         }
                       });
  return FromBits<T>(lane.out);
}

}  // namespace ovq::simt

inline void __syncthreads(ovq::simt::Where where = ovq::simt::Where::current()) {
  ovq::simt::Executor::Get().SyncThreads("__syncthreads", false, where);
}
inline int __syncthreads_count(int predicate,
                               ovq::simt::Where where = ovq::simt::Where::current()) {
  return static_cast<int>(
      ovq::simt::Executor::Get().SyncThreads("__syncthreads_count", predicate != 0, where));
}
inline int __syncthreads_or(int predicate, ovq::simt::Where where = ovq::simt::Where::current()) {
  return ovq::simt::Executor::Get().SyncThreads("__syncthreads_or", predicate != 0, where) != 0;
}
inline int __syncthreads_and(int predicate, ovq::simt::Where where = ovq::simt::Where::current()) {
  return ovq::simt::Executor::Get().SyncThreads("__syncthreads_and", predicate == 0, where) == 0;
}
inline void __syncwarp(unsigned mask = 0xffffffff,
                       ovq::simt::Where where = ovq::simt::Where::current()) {
  ovq::simt::Executor::Get().SyncWarp(mask, where);
}

template <ovq::simt::Shuffled T>
T __shfl_sync(unsigned mask, T value, int source, int width = 32,
              ovq::simt::Where where = ovq::simt::Where::current()) {
  const uint32_t lane = ovq::simt::Lane();
  const uint32_t from = (lane & -width) | (source & (width - 1));
  return ovq::simt::Shuffle("__shfl_sync", mask, value, from, where);
}
template <ovq::simt::Shuffled T>
T __shfl_xor_sync(unsigned mask, T value, int lane_mask, int width = 32,
                  ovq::simt::Where where = ovq::simt::Where::current()) {
  const uint32_t lane = ovq::simt::Lane();
  const uint32_t from = lane ^ lane_mask;
  // A later group's lane is out of reach, an earlier one's is not.
  const uint32_t end = (lane & -width) + width;
  return ovq::simt::Shuffle("__shfl_xor_sync", mask, value, from < end ? from : lane, where);
}
template <ovq::simt::Shuffled T>
T __shfl_up_sync(unsigned mask, T value, unsigned delta, int width = 32,
                 ovq::simt::Where where = ovq::simt::Where::current()) {
  const uint32_t lane = ovq::simt::Lane();
  const uint32_t from = (lane & (width - 1)) >= delta ? lane - delta : lane;
  return ovq::simt::Shuffle("__shfl_up_sync", mask, value, from, where);
}
template <ovq::simt::Shuffled T>
T __shfl_down_sync(unsigned mask, T value, unsigned delta, int width = 32,
                   ovq::simt::Where where = ovq::simt::Where::current()) {
  const uint32_t lane = ovq::simt::Lane();
  const uint32_t from =
      (lane & (width - 1)) + delta < static_cast<uint32_t>(width) ? lane + delta : lane;
  return ovq::simt::Shuffle("__shfl_down_sync", mask, value, from, where);
}

inline unsigned __ballot_sync(unsigned mask, int predicate,
                              ovq::simt::Where where = ovq::simt::Where::current()) {
  return ovq::simt::Ballot("__ballot_sync", mask, predicate != 0, where);
}
inline int __any_sync(unsigned mask, int predicate,
                      ovq::simt::Where where = ovq::simt::Where::current()) {
  return ovq::simt::Ballot("__any_sync", mask, predicate != 0, where) != 0;
}
inline int __all_sync(unsigned mask, int predicate,
                      ovq::simt::Where where = ovq::simt::Where::current()) {
  return ovq::simt::Ballot("__all_sync", mask, predicate == 0, where) == 0;
}
template <ovq::simt::Shuffled T>
unsigned __match_any_sync(unsigned mask, T value,
                          ovq::simt::Where where = ovq::simt::Where::current()) {
  return static_cast<unsigned>(ovq::simt::Exchange(
      "__match_any_sync", mask, ovq::simt::ToBits(value), 0, where, ovq::simt::WriteMatches));
}

template <class T>
requires(std::same_as<T, unsigned> || std::same_as<T, int>) T
    __reduce_add_sync(unsigned mask, T value,
                      ovq::simt::Where where = ovq::simt::Where::current()) {
  const auto add = [](unsigned a, unsigned b) { return a + b; };
  return static_cast<T>(
      ovq::simt::Reduce("__reduce_add_sync", mask, static_cast<unsigned>(value), add, where));
}
template <class T>
requires(std::same_as<T, unsigned> || std::same_as<T, int>) T
    __reduce_max_sync(unsigned mask, T value,
                      ovq::simt::Where where = ovq::simt::Where::current()) {
  return ovq::simt::Reduce(
      "__reduce_max_sync", mask, value, [](T a, T b) { return a > b ? a : b; }, where);
}
template <class T>
requires(std::same_as<T, unsigned> || std::same_as<T, int>) T
    __reduce_min_sync(unsigned mask, T value,
                      ovq::simt::Where where = ovq::simt::Where::current()) {
  return ovq::simt::Reduce(
      "__reduce_min_sync", mask, value, [](T a, T b) { return a < b ? a : b; }, where);
}
inline unsigned __reduce_or_sync(unsigned mask, unsigned value,
                                 ovq::simt::Where where = ovq::simt::Where::current()) {
  return ovq::simt::Reduce(
      "__reduce_or_sync", mask, value, [](unsigned a, unsigned b) { return a | b; }, where);
}

inline void __nanosleep(unsigned) { ovq::simt::Executor::Get().Yield(); }
