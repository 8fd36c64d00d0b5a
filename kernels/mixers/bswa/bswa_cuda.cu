// Block sliding windows on CUDA: the attention kernels over sinks and window, then the slide of the
// windows whose chunk is full.
#include "kernels/common/cuda/cuda_device.h"
#include "kernels/mixers/bswa/bswa.h"
#include "kernels/mixers/common/cuda/slide.cuh"

namespace ovq::kernels {
namespace cuda {
namespace {

constexpr int kThreads = 256;

struct SlideArgs {
  AttentionBlocks blocks;
  DeviceSequences seqs;
  int32_t wave;
};

// Grid (sequences, kv heads).
template <class T>
__global__ void __launch_bounds__(kThreads) SlideWindows(const __grid_constant__ SlideArgs args) {
  const int s = static_cast<int>(blockIdx.x);
  std::byte* session = args.seqs.state[s];
  const int32_t chunk_len = args.blocks.wave_span;
  if (session == nullptr) return;
  const WaveTokens tokens = TokensInWave(args.seqs, s, chunk_len, args.wave);
  if (tokens.end != tokens.span_begin + chunk_len) return;
  SlideRecent<T>(args.blocks, {.session = session,
                               .kv_head = static_cast<int>(blockIdx.y),
                               .chunk = tokens.span_begin / chunk_len,
                               .n_old = 0,
                               .n_next = 0});
}

}  // namespace
}  // namespace cuda

void BlockSlidingAttentionCuda(DeviceContext& context, const AttentionArgs& layer_args) {
  const AttentionBlocks& blocks = layer_args.blocks;
  const dim3 grid(static_cast<unsigned>(layer_args.seqs.n_seqs()),
                  static_cast<unsigned>(blocks.shape.n_kv_heads));
  const auto kernel =
      VisitSlots(blocks.dtype, []<class T>(Slots<T>) { return cuda::SlideWindows<T>; });
  AttendWavesCuda(context, layer_args, {}, [&](int wave) {
    if (blocks.recent_spans == 1) return;
    cuda::Launch(context, kernel, grid, cuda::kThreads, 0,
                 cuda::SlideArgs{blocks, layer_args.seqs.device, wave});
  });
}

}  // namespace ovq::kernels
