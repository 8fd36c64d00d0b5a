// Attention over blocks of 64 slots on CUDA: one set of kernels for all mixers.
//
// A batch is done in waves (batch.h), so that a chunk's update lies between two of them and no slot
// of a ring is overwritten before the rows that still see it are done.
//
// Bits. A row meets its blocks in groups of kCudaSegmentBlocks; each group is an online softmax of
// its own, (max, sum, acc), and the groups are merged from the first to the last. So a group may be
// done by a thread block of its own (decode: split over the dictionary) or one after another by the
// same (prefill) with the same result, and a row's bits depend on nothing but the row.
#pragma once

#include <cstdint>

#include "kernels/mixers/common/attend.h"

namespace ovq::cuda {

inline constexpr int kCudaSegmentBlocks = 4;  // the CPU has 8: kCpuSegmentBlocks

// Writes the values of a wave's rows, and the keys that are kept in the state, to their recent
// slots, rounded to nearest.
void StoreRecent(DeviceContext& context, const AttentionArgs& args, int wave);

// Whether a tile's segments are split over thread blocks. No bit depends on it.
enum class Split : uint8_t { kAuto, kAlways, kNever };

// rows.out of a wave's rows, and their probes.
void AttendWave(DeviceContext& context, const AttentionArgs& args, int wave,
                Split split = Split::kAuto);

}  // namespace ovq::cuda
