#include "model/tokenizers/word_cache.h"

#include <mutex>

#include "absl/container/inlined_vector.h"
#include "absl/hash/hash.h"
#include "base/text.h"

namespace ovq::model {
namespace {

constexpr size_t kShards = 64;
constexpr size_t kSlots = 512;  // per shard: 32,768 words in all, some MB, at most 25

struct Slot {
  std::string word;  // empty: free
  absl::InlinedVector<int32_t, 4> ids;
};

}  // namespace

struct alignas(64) WordCache::Shard {
  std::mutex mutex;
  std::vector<Slot> slots = std::vector<Slot>(kSlots);
};

WordCache::WordCache() : shards_(std::make_unique<Shard[]>(kShards)) {}
WordCache::~WordCache() = default;

WordCache::Shard& WordCache::ShardFor(size_t hash) const { return shards_[hash % kShards]; }

bool WordCache::Find(std::string_view word, std::vector<int32_t>& ids) const {
  const size_t hash = absl::HashOf(AbslView(word));
  Shard& shard = ShardFor(hash);
  const std::lock_guard lock(shard.mutex);
  const Slot& slot = shard.slots[hash / kShards % kSlots];
  if (slot.word != word) return false;
  ids.insert(ids.end(), slot.ids.begin(), slot.ids.end());
  return true;
}

void WordCache::Insert(std::string_view word, const int32_t* ids, size_t n) {
  const size_t hash = absl::HashOf(AbslView(word));
  Shard& shard = ShardFor(hash);
  const std::lock_guard lock(shard.mutex);
  Slot& slot = shard.slots[hash / kShards % kSlots];
  slot.word = word;
  slot.ids.assign(ids, ids + n);
}

}  // namespace ovq::model
