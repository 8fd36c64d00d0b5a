// RecurrentMixer: a SequenceMixer whose whole state is rewritten by every token, and its registry
// functions.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "base/status_macros.h"
#include "kernels/mixers/mixer.h"

namespace ovq {

// Requirements for T:
//   Config: its config
//   explicit T(const Config&)
//   MixerState layout: has no growing part
//   void Load(const MixerSpec&): loads its weights; errors go to spec.weights
//   size_t weight_bytes() const
//   void Forward(const LayerArgs&, TensorView x, TensorView y) const: see SequenceMixer
template <class T>
class RecurrentMixer final : public SequenceMixer {
 public:
  explicit RecurrentMixer(T recurrence) : recurrence_(std::move(recurrence)) {}

  const MixerState& state() const override { return recurrence_.layout; }
  size_t weight_bytes() const override { return recurrence_.weight_bytes(); }
  void Forward(const LayerArgs& args, TensorView x, TensorView y) const override {
    recurrence_.Forward(args, x, y);
  }
  std::vector<StateExtent> UndoExtents(const LayerState& where, const TokenRange&) const override {
    return {{where.fixed_offset, recurrence_.layout.fixed.bytes()}};
  }

 private:
  T recurrence_;
};

// The two functions of a registry entry.
template <class T>
absl::StatusOr<MixerState> RecurrentState(const StateSpec& spec) {
  ASSIGN_OR_RETURN(const typename T::Config config, CheckedConfig<typename T::Config>(spec));
  return T(config).layout;
}
template <class T>
absl::StatusOr<std::unique_ptr<SequenceMixer>> MakeRecurrent(const MixerSpec& spec) {
  ASSIGN_OR_RETURN(const typename T::Config config, CheckedConfig<typename T::Config>(spec.state));
  T recurrence(config);
  recurrence.Load(spec);
  if (!spec.weights.status().ok()) return spec.weights.status();
  return std::make_unique<RecurrentMixer<T>>(std::move(recurrence));
}

}  // namespace ovq
