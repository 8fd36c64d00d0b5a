#include <array>

#include "kernels/mixers/bswa/bswa.h"
#include "kernels/mixers/closest_pair/closest_pair.h"
#include "kernels/mixers/gated_delta_net/gated_delta_net.h"
#include "kernels/mixers/key_diff/key_diff.h"
#include "kernels/mixers/kvm/kvm.h"
#include "kernels/mixers/lattice/lattice.h"
#include "kernels/mixers/mamba2/mamba2.h"
#include "kernels/mixers/mesa_net/mesa_net.h"
#include "kernels/mixers/mixer.h"
#include "kernels/mixers/no_mixer.h"
#include "kernels/mixers/ovq/ovq.h"
#include "kernels/mixers/softmax/softmax.h"
#include "kernels/mixers/transformer_vq/transformer_vq.h"
#include "kernels/mixers/vq/vq.h"

namespace ovq::kernels {
namespace {

constexpr std::array kRegistry = {
    MakeEntry<SlidingAttention>("sliding_attention", ""),
    MakeEntry<BlockSlidingAttention>("block_sliding_attention", "bswa"),
    MakeEntry<FullAttention>("full_attention", ""),
    MakeEntry<OvqAttention>("ovq_attention", "ovq"),
    MakeEntry<ClosestPairAttention>("closest_pair_attention", "ovq"),
    MakeEntry<KeyDiffAttention>("key_diff_attention", "ovq"),
    MakeEntry<KvmAttention>("kvm_attention", "kvm"),
    MakeEntry<VqAttention>("vq_attention", "vq"),
    MakeEntry<GatedDeltaNet>("gated_delta_net", "gdn"),
    MakeEntry<Mamba2>("mamba2", "mamba2"),
    MakeEntry<MesaNet>("mesa_net", "mesa_net"),
    MakeEntry<Lattice>("lattice", "lattice"),
    MakeEntry<TransformerVq>("transformer_vq", "transformer_vq"),
};

constexpr MixerEntry kNone = MakeEntry<NoMixer>(kNoMixer, "");

}  // namespace

std::span<const MixerEntry> MixerRegistry() { return kRegistry; }

const MixerEntry* FindMixer(std::string_view layer_type) {
  for (const MixerEntry& entry : kRegistry) {
    if (entry.layer_type == layer_type) return &entry;
  }
  return layer_type == kNoMixer ? &kNone : nullptr;
}

absl::StatusOr<std::unique_ptr<SequenceMixer>> MixerEntry::make(const MixerSpec& spec) const {
  ASSIGN_OR_RETURN(std::unique_ptr<SequenceMixer> mixer, empty(spec.state));
  mixer->Load(spec);
  if (!spec.weights.status().ok()) return spec.weights.status();
  return mixer;
}

absl::StatusOr<MixerState> MixerEntry::state(const StateSpec& spec) const {
  ASSIGN_OR_RETURN(const std::unique_ptr<SequenceMixer> mixer, empty(spec));
  return mixer->state();
}

void ReadFields(const Attrs& model, const Attrs& section, int64_t d_model, MixerConfig& config) {
  AttrReader of_model(model, config.names), of_section(section, config.names);
  config.section = section.path();
  config.Read({of_model, of_section, d_model, Device::kCpu});
  config.problems = of_model.status();
  AddProblems(config.problems, of_section.status());
}

}  // namespace ovq::kernels
