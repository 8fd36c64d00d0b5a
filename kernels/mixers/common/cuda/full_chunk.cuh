// The heads whose chunk a wave fills: kernels that update dictionaries and windows have a thread
// block for each head, or several.
#pragma once

#include <cuda_runtime.h>

#include "kernels/mixers/common/attend.h"

namespace ovq::kernels::cuda {

// Grid (sequences, kv heads, z).
inline dim3 HeadGrid(const AttentionArgs& args, int z = 1) {
  return {static_cast<unsigned>(args.seqs.n_seqs()),
          static_cast<unsigned>(args.blocks.shape.n_kv_heads), static_cast<unsigned>(z)};
}

// The chunk that a sequence's head fills in the wave. False: it fills none.
__device__ inline bool FindFullChunk(const AttentionBlocks& blocks, const DeviceWave& wave, int s,
                                     int kv_head, FullChunk& chunk) {
  std::byte* session = wave.seqs.state[s];
  if (session == nullptr) return false;
  const WaveTokens tokens = TokensInWave(wave, s, blocks.wave_span);
  if (tokens.end != tokens.span_begin + blocks.wave_span) return false;
  chunk = {.session = session,
           .kv_head = kv_head,
           .chunk = tokens.span_begin / blocks.wave_span,
           .n_old = blocks.LiveAt(s, kv_head, wave.index),
           .n_next = blocks.LiveAt(s, kv_head, wave.index + 1)};
  return true;
}
// The chunk that this thread block's head fills.
__device__ inline bool FindFullChunk(const AttentionBlocks& blocks, const DeviceWave& wave,
                                     FullChunk& chunk) {
  return FindFullChunk(blocks, wave, static_cast<int>(blockIdx.x), static_cast<int>(blockIdx.y),
                       chunk);
}

}  // namespace ovq::kernels::cuda
