// The launches that AttendWave chooses from. `grid`: thread blocks, see Tile.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/mixers/common/cuda/attend.h"

namespace ovq::cuda {

struct AttendArgs;

// The most recent blocks that the rows of one sequence lie in, in a wave.
int RecentBlocks(const AttentionBlocks& blocks, const BatchSequences& seqs, int wave);

// Tensor cores: queries and keys in bfloat16, blocks too, or in int8, of which the kernels of both
// take about the same shared memory for decode, more for prefill; head_dim a multiple of 16, both
// at most 256. Decode: tiles of 16 rows. Prefill: tiles of 16 n_warps rows.
size_t AttendDecodeShared(DType dtype, int head_dim, int value_stride);
void LaunchAttendDecode(DeviceContext& context, const AttendArgs& args, uint32_t grid);
// Asks for the shared memory of whole multiprocessors. `wanted`: three of its thread blocks on
// each, or as many as fit into their shared memory; `blocks`: how many there can be.
struct DecodeOccupancy {
  int blocks, wanted;
};
DecodeOccupancy PrepareAttendDecode(DeviceContext& context, DType dtype, int head_dim,
                                    int value_stride);
size_t AttendPrefillShared(DType dtype, int head_dim, int value_stride, int n_warps);
void LaunchAttendPrefill(DeviceContext& context, const AttendArgs& args, uint32_t grid,
                         int n_warps);

// Float32 arithmetic: any blocks, any sizes. Tiles of n_rows rows, 4 or 16.
size_t AttendFmaShared(int head_dim, int value_stride, int n_rows);
void LaunchAttendFma(DeviceContext& context, const AttendArgs& args, uint32_t grid, int n_rows);

}  // namespace ovq::cuda
