// OVQ attention on CUDA, the equations of ovq_cpu.cc: the dictionary and the pending chunk are the
// blocks that the attention kernels meet; the update is in ovq_update.cu.
#include "kernels/mixers/common/cuda/attend.h"
#include "kernels/mixers/ovq/ovq.h"

namespace ovq {
namespace {

cuda::AttentionBlocks Blocks(const OvqArgs& args) {
  const OvqPlaces places = args.state.Places(args.where);
  cuda::AttentionBlocks blocks;
  blocks.shape = args.config.shape;
  blocks.dtype = args.config.dtype;
  blocks.compute_dtype = args.rows.out_dtype;
  blocks.wave_span = args.config.chunk_len;
  blocks.live = args.live();
  blocks.dictionary_keys = cuda::InState(places.keys);
  blocks.dictionary_values = cuda::InState(places.values);
  blocks.dictionary_bias = cuda::InState(places.log_counts);
  blocks.recent_from_span = true;
  blocks.recent_keys = cuda::InState(places.pending_keys);
  blocks.recent_values = cuda::InState(places.pending_values);
  blocks.probe = true;
  blocks.best_score = cuda::InState(places.best_score);
  blocks.best_slot = cuda::InState(places.best_slot);
  return blocks;
}

}  // namespace

// A wave is a chunk: it is attended with the dictionary as it was, then merged into it.
void OvqAttentionCuda(DeviceContext& context, const OvqArgs& args) {
  const cuda::AttentionBlocks blocks = Blocks(args);
  const int n_waves = Waves(args.seqs, blocks.wave_span);
  for (int wave = 0; wave < n_waves; ++wave) {
    cuda::StoreRecent(context, blocks, args.seqs, args.rows, wave);
    cuda::AttendWave(context, blocks, args.seqs, args.rows, wave);
    OvqUpdateCuda(context, args, wave);
  }
}

}  // namespace ovq
