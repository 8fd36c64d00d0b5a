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

namespace ovq::kernels {
namespace {

template <class T>
constexpr MixerEntry Attention(std::string_view layer_type, std::string_view section) {
  return {layer_type, section, NewConfig<typename T::Config>, MakeAttention<T>, AttentionState<T>};
}
template <class T>
constexpr MixerEntry Recurrent(std::string_view layer_type, std::string_view section) {
  return {layer_type, section, NewConfig<typename T::Config>, MakeRecurrent<T>, RecurrentState<T>};
}

constexpr std::array kRegistry = {
    Attention<SlidingAttention>("sliding_attention", ""),
    Attention<BlockSlidingAttention>("block_sliding_attention", "bswa"),
    Attention<FullAttention>("full_attention", ""),
    Attention<OvqAttention>("ovq_attention", "ovq"),
    Attention<ClosestPairAttention>("closest_pair_attention", "ovq"),
    Attention<KvmAttention>("kvm_attention", "kvm"),
    Attention<VqAttention>("vq_attention", "vq"),
    Recurrent<GatedDeltaNet>("gated_delta_net", "gdn"),
    Recurrent<Mamba2>("mamba2", "mamba2"),
    Recurrent<MesaNet>("mesa_net", "mesa_net"),
    Recurrent<Lattice>("lattice", "lattice"),
    MixerEntry{"transformer_vq", "transformer_vq", NewConfig<TransformerVqConfig>,
               MakeTransformerVq, TransformerVqState},
};

}  // namespace

std::span<const MixerEntry> MixerRegistry() { return kRegistry; }

const MixerEntry* FindMixer(std::string_view layer_type) {
  for (const MixerEntry& entry : kRegistry) {
    if (entry.layer_type == layer_type) return &entry;
  }
  return nullptr;
}

void ReadFields(const Attrs& model, const Attrs& section, int64_t d_model, MixerConfig& config) {
  AttrReader of_model(model, config.names), of_section(section, config.names);
  config.section = section.path();
  config.Read({of_model, of_section, d_model, Device::kCpu});
  config.problems = of_model.status();
  AddProblems(config.problems, of_section.status());
}

}  // namespace ovq::kernels
