// The kernel launches that AttendWave chooses from. `grid` counts thread blocks, see Tile.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/mixers/common/cuda/attend.h"

namespace ovq::kernels::cuda {

struct AttendArgs;

// The largest number of recent blocks that one sequence's tokens of a wave lie in.
int RecentBlocks(const AttentionBlocks& blocks, const BatchSequences& seqs, int wave);

// How many thread blocks of a kernel run on a multiprocessor. `wanted`: the most asked for, or as
// many as fit into its shared memory; `blocks`: how many can run.
struct Occupancy {
  int blocks, wanted;
};
// Requests the shared memory of whole multiprocessors for the kernel; `most`: thread blocks wanted.
Occupancy RequestOccupancy(DeviceContext& context, void (*kernel)(AttendArgs), size_t shared_bytes,
                           int most);

// Tensor core kernels: queries and keys in bfloat16, blocks in a type that is exact in it (those
// that are widened take about the same shared memory); head_dim a multiple of 16, both dimensions
// at most 256. Decode: tiles of 16 rows. Prefill: tiles of 16 n_warps queries and as many probes.
size_t AttendDecodeShared(DType dtype, int head_dim, int value_stride);
void LaunchAttendDecode(DeviceContext& context, const AttendArgs& args, uint32_t grid);
Occupancy PrepareAttendDecode(DeviceContext& context, DType dtype, int head_dim, int value_stride);
// The most warps with rows, and blocks of slots, that max_shared bytes have room for; 0: none.
struct PrefillPlan {
  int n_warps, n_stages;
};
PrefillPlan PlanAttendPrefill(DType dtype, int head_dim, int value_stride, size_t max_shared);
void LaunchAttendPrefill(DeviceContext& context, const AttendArgs& args, uint32_t grid);
Occupancy PrepareAttendPrefill(DeviceContext& context, DType dtype, int head_dim, int value_stride);

// The float32 kernel: any block type, any sizes. Tiles of n_rows rows, 4 or 16.
size_t AttendFmaShared(int head_dim, int value_stride, int n_rows);
void LaunchAttendFma(DeviceContext& context, const AttendArgs& args, uint32_t grid, int n_rows);

}  // namespace ovq::kernels::cuda
