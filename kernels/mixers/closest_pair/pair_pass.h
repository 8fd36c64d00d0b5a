// State of one head's closest-pair chunk on the CPU during one pass of tokens.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/mixers/closest_pair/pair_buffers.h"

namespace ovq {

// Tokens of a chunk that attended together.
template <class T>
struct PairPass {
  PairPass(const ClosestPairArgs& args, const PairChunk& pass_chunk, PairBuffers& pass_buffers)
      : at{args.blocks, args.places, pass_chunk}, chunk(pass_chunk), buffers(pass_buffers) {
    for (int32_t b = 0; b < chunk.n_blocks(); ++b) {
      buffers.blocks[b] = {at.keys(b), at.values(b), at.bounds(b), at.partners(b), at.oldest(b)};
    }
  }

  std::span<const CandidateBlock> Blocks(int64_t begin, int64_t end) const {
    return {buffers.blocks + begin, static_cast<size_t>(end - begin)};
  }
  std::span<const CandidateBlock> Blocks() const {
    return Blocks(0, chunk.first_merged() / kBlockSlots + NumBlocks(n_means));
  }
  // Blocks that do not change during the pass.
  std::span<const CandidateBlock> SlotsAndTokens() const {
    return Blocks(0, chunk.slot_blocks() + NumBlocks(end));
  }

  // Index of the candidate that `token` becomes by joining. -1 if it is pinned, or in an invalid
  // state.
  int32_t FindCandidate(int64_t token) const {
    if (chunk.IsPinned(token)) return -1;
    if (token >= chunk.begin || !chunk.HasMerged()) return chunk.FindCandidate(token);
    for (int32_t b = 0; b < chunk.slot_blocks(); ++b) {
      const uint32_t* oldest = at.oldest(b);
      bool may_be_here = false;
      for (int s = 0; s < kBlockSlots; ++s) {
        may_be_here |= oldest[s] == static_cast<uint32_t>(token);
      }
      for (int32_t i = b * kBlockSlots; may_be_here && i < (b + 1) * kBlockSlots; ++i) {
        if (i < chunk.n_slots && at.IsUnjoinedToken(i, token)) return i;
      }
    }
    return -1;
  }

  const PairBlocks<T> at;
  const PairChunk& chunk;
  PairBuffers& buffers;
  int64_t end = 0, n_means = 0;  // token offset in the chunk; means made in the chunk so far
  bool merges = false;           // whether pairs merge in this pass
};

}  // namespace ovq
