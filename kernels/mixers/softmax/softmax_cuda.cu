// Softmax attention on CUDA, the equation of softmax_cpu.cc: the window or cache is the recent
// blocks that the attention kernels meet.
#include "kernels/mixers/common/cuda/attend.h"
#include "kernels/mixers/softmax/softmax.h"

namespace ovq {

// A window's rows go in waves of a block: the ring has a place for the query's own block and for
// those its window reaches into, no more. Without a window nothing is overwritten: one wave.
void SoftmaxAttentionCuda(DeviceContext& context, const SoftmaxArgs& args) {
  const auto ring = static_cast<int32_t>(args.state.ring_blocks());
  cuda::AttentionBlocks blocks;
  blocks.shape = args.shape;
  blocks.dtype = args.state.dtype();
  blocks.compute_dtype = args.rows.out_dtype;
  blocks.wave_span = args.window > 0 ? kBlockSlots : 0;
  blocks.window = args.window;
  blocks.recent_keys = cuda::InState(args.state.keys_place(args.where), ring);
  blocks.recent_values = cuda::InState(args.state.values_place(args.where), ring);
  const int n_waves = Waves(args.seqs, blocks.wave_span);
  for (int wave = 0; wave < n_waves; ++wave) {
    cuda::StoreRecent(context, blocks, args.seqs, args.rows, wave);
    cuda::AttendWave(context, blocks, args.seqs, args.rows, wave);
  }
}

}  // namespace ovq
