// Block sliding windows on CUDA: the attention kernels over sinks and window, then the slide of the
// windows whose chunk is full.
#include "kernels/common/cuda/cuda_device.h"
#include "kernels/mixers/bswa/bswa.h"
#include "kernels/mixers/common/cuda/full_chunk.cuh"
#include "kernels/mixers/common/cuda/slide.cuh"

namespace ovq::kernels {
namespace cuda {
namespace {

constexpr int kThreads = 256;

// Grid (sequences, kv heads).
template <class T>
__global__ void __launch_bounds__(kThreads)
    SlideWindows(const __grid_constant__ AttentionBlocks blocks,
                 const __grid_constant__ DeviceWave wave) {
  FullChunk chunk;
  if (FindFullChunk(blocks, wave, chunk)) SlideRecent<T>(blocks, chunk);
}

}  // namespace
}  // namespace cuda

void BlockSlidingAttentionCuda(DeviceContext& context, const AttentionArgs& args) {
  const AttentionBlocks& blocks = args.blocks;
  const auto kernel =
      VisitSlots(blocks.dtype, []<class T>(Slots<T>) { return cuda::SlideWindows<T>; });
  AttendWavesCuda(context, args, {}, [&](const DeviceWave& wave) {
    if (blocks.recent_spans == 1) return;
    cuda::Launch(context, kernel, cuda::HeadGrid(args), cuda::kThreads, 0, blocks, wave);
  });
}

}  // namespace ovq::kernels
