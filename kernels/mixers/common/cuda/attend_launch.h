// The kernel launches that AttendWave chooses from. `grid` counts thread blocks, see Tile.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/mixers/common/cuda/attend.h"

namespace ovq::kernels::cuda {

struct AttendArgs;

// The largest number of recent blocks that one sequence's tokens of a wave lie in.
int RecentBlocks(const AttentionBlocks& blocks, const BatchSequences& seqs, int wave);

// Tensor core kernels: queries and keys in bfloat16, blocks in a type that is exact in it (those
// that are widened take about the same shared memory for decode, and more for prefill); head_dim a
// multiple of 16, both dimensions at most 256. Decode: tiles of 16 rows. Prefill: tiles of 16
// n_warps rows.
size_t AttendDecodeShared(DType dtype, int head_dim, int value_stride);
void LaunchAttendDecode(DeviceContext& context, const AttendArgs& args, uint32_t grid);
// Requests the shared memory of whole multiprocessors. `wanted`: thread blocks per multiprocessor,
// three or as many as fit into its shared memory; `blocks`: how many can run.
struct DecodeOccupancy {
  int blocks, wanted;
};
DecodeOccupancy PrepareAttendDecode(DeviceContext& context, DType dtype, int head_dim,
                                    int value_stride);
size_t AttendPrefillShared(DType dtype, int head_dim, int value_stride, int n_warps);
void LaunchAttendPrefill(DeviceContext& context, const AttendArgs& args, uint32_t grid,
                         int n_warps);

// The float32 kernel: any block type, any sizes. Tiles of n_rows rows, 4 or 16.
size_t AttendFmaShared(int head_dim, int value_stride, int n_rows);
void LaunchAttendFma(DeviceContext& context, const AttendArgs& args, uint32_t grid, int n_rows);

}  // namespace ovq::kernels::cuda
