// NoMixer: what stands for the mixer in a layer that is a feed-forward alone.
#pragma once

#include <vector>

#include "base/check.h"
#include "kernels/mixers/mixer.h"

namespace ovq::kernels {

struct NoMixerConfig {};
inline void ReadConfig(const FieldReaders&, NoMixerConfig&) {}

class NoMixer final : public SequenceMixer {
 public:
  using Config = NoMixerConfig;
  NoMixer(const StateSpec&, const Config&) {}
  void Load(const MixerSpec&) override {}
  void Forward(const LayerArgs& args, const ProductRows&, TensorView) const override {
    Check(args.adds, "a layer without a mixer adds nothing");
  }
  std::vector<StateExtent> UndoExtents(const LayerState&, const TokenRange&) const override {
    return {};
  }
  bool CanUndoSuffix(const TokenRange&) const override { return true; }
};

}  // namespace ovq::kernels
