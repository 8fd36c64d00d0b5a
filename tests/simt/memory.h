// MemoryRegistry: all memory that the runtime allocated.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>

namespace ovq::simt {

enum class MemoryKind { kHost, kPinned, kDevice };

class MemoryRegistry {
 public:
  MemoryRegistry();
  // Lives as long as the process, whatever is destroyed after main.
  static MemoryRegistry& Get();

  // Null if the device has too little left, or FailAllocations says so. Filled with 0xff, guard
  // zones either side.
  void* Allocate(size_t bytes, MemoryKind kind);
  // False if p is no allocation of the kind.
  bool Free(void* p, MemoryKind kind);
  // Counts memory of the device that is allocated elsewhere; false if too little is left.
  bool Reserve(size_t bytes);
  void Return(size_t bytes);
  // Ranges that virtual memory management made accessible.
  void AddMapped(void* p, size_t bytes);
  void RemoveMapped(void* p);

  // The kind of memory that the range lies in: kHost if not registered.
  MemoryKind Classify(const void* p) const;
  // Empty if the range lies within one allocation (kHost: always), else what is wrong.
  std::string CheckRange(const void* p, size_t bytes) const;
  // Reports damaged guard zones.
  void CheckGuards() const;

  void SetTotal(size_t bytes);
  void Fail(int n, int first);
  int to_fail() const;
  size_t total() const;
  size_t available() const;

 private:
  struct Allocation {
    size_t bytes;
    MemoryKind kind;
    void* pages;  // null for mapped ranges
  };
  using Map = std::map<uintptr_t, Allocation>;
  // The allocation whose bytes or guard zones p lies in.
  Map::const_iterator Find(const void* p) const;
  static std::string FindDamage(uintptr_t begin, const Allocation& allocation);

  mutable std::mutex mutex_;
  Map allocations_;
  size_t total_;
  size_t used_ = 0;
  int to_fail_ = 0, before_failing_ = 0;
};

}  // namespace ovq::simt
