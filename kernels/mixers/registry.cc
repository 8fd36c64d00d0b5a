#include <array>

#include "kernels/mixers/bswa/bswa.h"
#include "kernels/mixers/closest_pair/closest_pair.h"
#include "kernels/mixers/gated_delta_net/gated_delta_net.h"
#include "kernels/mixers/kvm/kvm.h"
#include "kernels/mixers/lattice/lattice.h"
#include "kernels/mixers/mamba2/mamba2.h"
#include "kernels/mixers/mesa_net/mesa_net.h"
#include "kernels/mixers/mixer.h"
#include "kernels/mixers/ovq/ovq.h"
#include "kernels/mixers/recurrent/recurrent_mixer.h"
#include "kernels/mixers/softmax/softmax.h"
#include "kernels/mixers/transformer_vq/transformer_vq.h"
#include "kernels/mixers/vq/vq.h"

namespace ovq {
namespace {

constexpr std::array kRegistry = {
    MixerEntry{"sliding_attention", "", MakeAttention<SlidingAttention>,
               AttentionState<SlidingAttention>},
    MixerEntry{"block_sliding_attention", "bswa", MakeAttention<BlockSlidingAttention>,
               AttentionState<BlockSlidingAttention>},
    MixerEntry{"full_attention", "", MakeAttention<FullAttention>, AttentionState<FullAttention>},
    MixerEntry{"ovq_attention", "ovq", MakeAttention<OvqAttention>, AttentionState<OvqAttention>},
    MixerEntry{"closest_pair_attention", "ovq", MakeAttention<ClosestPairAttention>,
               AttentionState<ClosestPairAttention>},
    MixerEntry{"kvm_attention", "kvm", MakeAttention<KvmAttention>, AttentionState<KvmAttention>},
    MixerEntry{"vq_attention", "vq", MakeAttention<VqAttention>, AttentionState<VqAttention>},
    MixerEntry{"gated_delta_net", "gdn", MakeRecurrent<GatedDeltaNet>,
               RecurrentState<GatedDeltaNet>},
    MixerEntry{"mamba2", "mamba2", MakeRecurrent<Mamba2>, RecurrentState<Mamba2>},
    MixerEntry{"mesa_net", "mesa_net", MakeRecurrent<MesaNet>, RecurrentState<MesaNet>},
    MixerEntry{"lattice", "lattice", MakeRecurrent<Lattice>, RecurrentState<Lattice>},
    MixerEntry{"transformer_vq", "transformer_vq", MakeTransformerVq, TransformerVqState},
};

}  // namespace

std::span<const MixerEntry> MixerRegistry() { return kRegistry; }

const MixerEntry* FindMixer(std::string_view layer_type) {
  for (const MixerEntry& entry : kRegistry) {
    if (entry.layer_type == layer_type) return &entry;
  }
  return nullptr;
}

}  // namespace ovq
