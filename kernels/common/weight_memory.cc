#include "kernels/common/weight_memory.h"

#include <algorithm>
#include <mutex>

#include "base/huge_pages.h"
#include "kernels/common/device.h"

namespace ovq::kernels {
namespace {

// Smaller pieces come from malloc: a huge page would be mostly empty in a model that has only such.
constexpr size_t kLeastInBlock = size_t{256} << 10;

struct Block {
  explicit Block(size_t bytes) : memory(Device::kCpu, bytes) {
    PreferHugePages(memory.as<void>(), bytes);
  }
  Buffer memory;
  size_t used = 0;
};

// The block that has room, while any piece of it is in use.
struct Blocks {
  std::mutex mutex;
  std::weak_ptr<Block> open;
};
Blocks& TheBlocks() {
  static Blocks* const blocks = new Blocks;  // outlives every static product
  return *blocks;
}

}  // namespace

std::shared_ptr<std::byte> WeightMemory(size_t bytes) {
  if (bytes < kLeastInBlock) {
    const auto memory = std::make_shared<Buffer>(Device::kCpu, bytes);
    return {memory, memory->as<std::byte>()};
  }
  const size_t alignment = ScratchArena::kAlignment,
               size = (bytes + alignment - 1) / alignment * alignment;
  Blocks& blocks = TheBlocks();
  const std::lock_guard lock(blocks.mutex);
  std::shared_ptr<Block> block = blocks.open.lock();
  if (block == nullptr || block->memory.bytes() - block->used < size) {
    block = std::make_shared<Block>(std::max(size, kLargeBytes));
    if (size < kLargeBytes) blocks.open = block;
  }
  const size_t begin = block->used;
  block->used += size;
  return {block->memory.as<std::byte>() + begin, [block, begin, size](std::byte*) {
            const std::lock_guard lock(TheBlocks().mutex);
            if (block->used == begin + size) block->used = begin;
          }};
}

}  // namespace ovq::kernels
