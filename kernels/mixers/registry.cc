#include <array>

#include "kernels/mixers/mixer.h"
#include "kernels/mixers/ovq/ovq.h"
#include "kernels/mixers/softmax/softmax.h"
#include "kernels/mixers/vq/vq.h"

namespace ovq {
namespace {

constexpr std::array kRegistry = {
    MixerEntry{"sliding_attention", "", MakeSlidingAttention, SlidingAttentionState},
    MixerEntry{"full_attention", "", MakeFullAttention, FullAttentionState},
    MixerEntry{"ovq_attention", "ovq", MakeOvqAttention, OvqAttentionState},
    MixerEntry{"vq_attention", "vq", MakeVqAttention, VqAttentionState},
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
