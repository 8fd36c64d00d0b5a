// WordCache: a bounded cache of words' ids, because text repeats. Any number of threads.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace ovq::model {

// A word has one place, by its hash, and a new word there replaces the old one. So the size is
// fixed, and text that never repeats costs no more than without a cache.
class WordCache {
 public:
  WordCache();
  ~WordCache();

  static bool IsCacheable(std::string_view word) { return word.size() <= kLongestWord; }
  // Appends the ids of a cached word; false if it is not cached.
  bool Find(std::string_view word, std::vector<int32_t>& ids) const;
  void Insert(std::string_view word, const int32_t* ids, size_t n);

 private:
  static constexpr size_t kLongestWord = 128;  // bytes
  struct Shard;
  Shard& ShardFor(size_t hash) const;
  std::unique_ptr<Shard[]> shards_;
};

}  // namespace ovq::model
