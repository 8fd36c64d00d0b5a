// SequenceMixer, the interface of a layer's mixer: the state it keeps for a session, and one
// forward call. Also the registry that makes mixers by layer type.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "absl/status/statusor.h"
#include "base/check.h"
#include "base/problems.h"
#include "base/status_macros.h"
#include "kernels/common/attrs.h"
#include "kernels/common/device.h"
#include "kernels/common/tensor.h"
#include "kernels/mixers/batch_sequences.h"
#include "kernels/mixers/state.h"
#include "kernels/mixers/weight_reader.h"

namespace ovq::kernels {

// The arguments of one layer's forward call.
struct LayerArgs {
  DeviceContext& context;
  const BatchSequences& seqs;
  const LayerState& where;
  // Tensors from and for other layers. Call Put before the layer opens a scratch scope of its own.
  BatchTensors& tensors;
  bool adds = true;  // true: y += result; false: y = result
};

// Positions [begin, end) of a session with this slot cap, within one span (MixerState::span).
struct TokenRange {
  int64_t begin, end;
  int64_t slot_cap;
};

struct MixerSpec;

// A layer's sequence mixer. Immutable once it is loaded; any thread may call const methods with a
// DeviceContext of its own.
//
// The state after T tokens is a function of the T tokens, to the byte, however they were split into
// batches and whatever else was in those batches. A mixer keeps that promise in one of two ways.
// With a span (MixerState::span) it commits at absolute multiples of the span, and tokens in
// between attend to what is pending. Without one it runs the same recurrence token by token in
// prefill and in decode.
class SequenceMixer {
 public:
  virtual ~SequenceMixer() = default;
  // Loads the weights, once, before the first batch. Errors go to spec.weights.
  virtual void Load(const MixerSpec& spec) = 0;
  // y[n_tokens, d_model] += mix(x[n_tokens, d_model]), or y = mix(x) without LayerArgs::adds.
  // Advances each sequence's state in place. x in the compute dtype, y float32 (the residual
  // stream). A product is what reads x first (ProductRows).
  virtual void Forward(const LayerArgs& args, const ProductRows& x, TensorView y) const = 0;
  // The bytes of this layer's state that these tokens may change, each once. Restoring them undoes
  // the tokens.
  virtual std::vector<StateExtent> UndoExtents(const LayerState& where,
                                               const TokenRange& tokens) const = 0;
  // Whether each of these tokens changes bytes of its own. Restoring UndoExtents of the last few
  // then undoes only those, as if they had never come. False: only all of the tokens can be undone
  // together.
  virtual bool CanUndoSuffix(const TokenRange&) const { return false; }

  const MixerState& state() const { return state_; }

 protected:
  MixerState state_;  // follows from the config, except what a weight says of a new session
};

// Where a mixer's config finds its fields (docs/model-format.md).
struct FieldReaders {
  AttrReader& model;    // those at the top of config.json
  AttrReader& section;  // those of the mixer's own object ("ovq", "vq", ...)
  int64_t d_model;      // hidden_size: the width of x and y
  Device device;        // kCpu where it is not known yet
  bool ok() const { return model.ok() && section.ok(); }
};

struct AttentionConfig;

// A layer's part of config.json, whose type its mixer declares. A family of checkpoints fills in
// values, and what it does not fill in the mixer's ReadConfig reads, which also checks all values.
struct MixerConfig {
  virtual ~MixerConfig() = default;
  // Reads and checks the fields. Errors go to the readers.
  virtual void Read(const FieldReaders& from) = 0;
  virtual const AttentionConfig* attention() const = 0;  // null if the mixer is no attention

  FieldNames names;       // of the fields in a family's file; empty: those of docs/model-format.md
  std::string section;    // before the names of the section's fields in messages: "ovq."
  absl::Status problems;  // of reading it
};

// Config: a struct with a function ReadConfig(const FieldReaders&, Config&).
template <class Config>
struct LayerConfig final : MixerConfig {
  void Read(const FieldReaders& from) override { ReadConfig(from, fields); }
  const AttentionConfig* attention() const override {
    if constexpr (std::is_base_of_v<AttentionConfig, Config>) return &fields;
    return nullptr;
  }
  Config fields;
};

// The fields of a layer whose type has this config.
template <class Config>
const Config& FieldsAs(const MixerConfig& config) {
  const auto* const typed = dynamic_cast<const LayerConfig<Config>*>(&config);
  Check(typed != nullptr, "a layer's config is that of its type");
  return typed->fields;
}

// Reads a config from the top of config.json and from the mixer's object, which a family's file
// need not tell apart. Its errors stay in MixerConfig::problems.
void ReadFields(const Attrs& model, const Attrs& section, int64_t d_model, MixerConfig& config);

// Everything that determines a mixer's state.
struct StateSpec {
  const MixerConfig& config;
  int64_t d_model;  // hidden_size: the width of x and y
  // The type of stored keys and values, in mixers that have a choice: kF32, kBF16 or kI8.
  DType kv_dtype;
  Device device;
  // Each head's share of a session's slot cap, in layers whose slots are capped (Growth::shares).
  std::vector<double> slot_shares = {1};
};

// The mixer's part of a spec, checked against the limits of its device. InvalidArgument with all
// problems, which name fields as the file does.
template <class Config>
absl::StatusOr<Config> CheckedConfig(const StateSpec& spec) {
  if (!spec.config.problems.ok()) return spec.config.problems;
  Config config = FieldsAs<Config>(spec.config);
  AttrReader model("", spec.config.names), section(spec.config.section, spec.config.names);
  ReadConfig({model, section, spec.d_model, spec.device}, config);
  absl::Status problems = model.status();
  AddProblems(problems, section.status());
  if (!problems.ok()) return problems;
  return config;
}

// Everything that determines a mixer.
struct MixerSpec {
  int layer;
  StateSpec state;
  WeightReader& weights;     // this layer's
  DType compute_dtype;       // type of the matrix products: kF32 or kBF16
  float residual_scale = 1;  // factor of what Forward adds to y
  DeviceContext& context;
  int64_t most_tokens = INT64_MAX;  // that a session can come to
};

// One line of the registry.
struct MixerEntry {
  std::string_view layer_type;
  std::string_view section;  // key of its object in config.json, empty if it has none
  // Returns a config with the defaults of docs/model-format.md.
  std::shared_ptr<MixerConfig> (*config)();
  // Returns the mixer without its weights.
  absl::StatusOr<std::unique_ptr<SequenceMixer>> (*empty)(const StateSpec&);

  absl::StatusOr<std::unique_ptr<SequenceMixer>> make(const MixerSpec& spec) const;
  // Returns the state() of the mixer without its weights.
  absl::StatusOr<MixerState> state(const StateSpec& spec) const;
};
// The line of a mixer T with a type T::Config and a constructor T(const StateSpec&, const Config&).
template <class T>
constexpr MixerEntry MakeEntry(std::string_view layer_type, std::string_view section) {
  using Config = typename T::Config;
  return {layer_type, section,
          []() -> std::shared_ptr<MixerConfig> { return std::make_shared<LayerConfig<Config>>(); },
          [](const StateSpec& spec) -> absl::StatusOr<std::unique_ptr<SequenceMixer>> {
            ASSIGN_OR_RETURN(const Config config, CheckedConfig<Config>(spec));
            return std::make_unique<T>(spec, config);
          }};
}
std::span<const MixerEntry> MixerRegistry();
// The type of a layer that is a feed-forward alone; FindMixer has it, the registry does not.
inline constexpr std::string_view kNoMixer = "none";
const MixerEntry* FindMixer(std::string_view layer_type);  // null if unknown

}  // namespace ovq::kernels
