// One head's chunk of closest pairs on the CPU while some of its tokens pass.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/mixers/closest_pair/pair_buffers.h"

namespace ovq {

// Tokens of a chunk that have attended together.
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
  // These stay as they are.
  std::span<const CandidateBlock> SlotsAndTokens() const {
    return Blocks(0, chunk.slot_blocks() + NumBlocks(end));
  }

  // Of a token that joins now; -1: none, as it is pinned, or in a state that no sequence leaves.
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
  int64_t end = 0, n_means = 0;  // of the pass; of the chunk so far
  bool merges = false;           // pairs, in this pass
};

}  // namespace ovq
