// Attention over blocks of 64 slots on CUDA: one set of kernels for all mixers.
//
// A batch is processed in waves (batch_sequences.h), so that a chunk's update lies between two of
// them and no slot of a ring is overwritten before the tokens that still see it are done. Sliding
// windows need none: the tokens of long prompts attend to a larger ring in scratch memory.
//
// Bits. A row attends to its blocks in segments of kCudaSegmentBlocks; each segment is an online
// softmax of its own, (max, sum, acc), and the segments are merged from the first to the last. A
// segment may therefore be computed by a thread block of its own (decode: split over the
// dictionary) or one after another by the same thread block (prefill) with the same result, and a
// row's bits depend on nothing but the row.
#pragma once

#include <cstdint>
#include <functional>

#include "kernels/mixers/common/attend.h"

namespace ovq::kernels::cuda {

inline constexpr int kCudaSegmentBlocks = 4;  // kCpuSegmentBlocks is 8

// Stores the values of a wave's tokens, and the keys that are kept in the state, to their recent
// slots, rounded to nearest.
void StoreRecent(DeviceContext& context, const AttentionArgs& args, int wave);

// Copies the recent blocks that the tokens of a batch see and do not fill from rings in the states
// to larger ones.
void CopyRecent(DeviceContext& context, const AttentionBlocks& from, const AttentionBlocks& to,
                const BatchSequences& seqs);

// Whether a tile's segments are split over thread blocks. No bit depends on it.
enum class Split : uint8_t { kAuto, kAlways, kNever };

// Computes tokens.out of a wave's tokens, and their probes.
void AttendWave(DeviceContext& context, const AttentionArgs& args, int wave,
                Split split = Split::kAuto);

// AttendWavesCuda (attend.h) with a choice of split.
using WaveFn = std::function<void(const DeviceWave&)>;
void AttendWaves(DeviceContext& context, const AttentionArgs& args, Split split = Split::kAuto,
                 const WaveFn& prepare = {}, const WaveFn& update = {});

}  // namespace ovq::kernels::cuda
