// Families of checkpoints: one file each says what the config.json of a model_type means for the
// decoder (ModelConfig) and under which names its tensors lie in the file.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "base/json.h"
#include "kernels/common/attrs.h"
#include "kernels/common/tensor.h"
#include "model/config.h"

namespace ovq {

// A tensor of the decoder as it lies in a checkpoint: its elements in their order.
struct TensorInFile {
  std::string name;
  Shape shape;
  // Of a tensor that holds more than this one: runs of so many elements, the first at `first`,
  // their begins `stride` apart, which together are as many as the decoder's. 0: all of it.
  int64_t run = 0, first = 0, stride = 0;
};

struct Family {
  std::string_view model_type;
  bool is_strict;  // a field of the file that nobody reads is an error
  // Fills what the decoder is composed of. `fields`: the scalars and flat lists of the file; those
  // that every family has (dtype, special tokens, tokenizer) are read elsewhere, the dtype before.
  // InvalidArgument, all that is wrong (SplitProblems), names fields as the file does; what could
  // be read is filled in all the same, and layers whose tensors are not known are marked.
  absl::Status (*read)(const nlohmann::json& json, const Attrs& fields, ModelConfig& config);
  // Where the decoder's tensor `name` (docs/model-format.md) of that shape lies: under the first of
  // these names that the file has, else the first is missing. At least one.
  std::vector<TensorInFile> (*tensor)(const ModelConfig& config, std::string_view name,
                                      const Shape& shape);
  // Tensors that the family's writer leaves in the file though nothing reads them.
  bool (*is_unused)(std::string_view name_in_file);
  // A field that tells files of this family where they name no model_type; empty: none does.
  std::string_view marker = {};
};

extern const Family kOvqHybrid;      // docs/model-format.md
extern const Family kRwkv7Backbone;  // the code of the KVM paper
extern const Family kFlaGatedDeltaNet;
extern const Family kFlaMesaNet;
extern const Family kMamba2;             // of transformers and of flash-linear-attention
extern const Family kStateSpacesMamba2;  // of the authors' own code

// Of transformers, in the layout of the hub.
extern const Family kGraniteMoeHybrid, kOlmoHybrid, kCohere2;
extern const Family kQwen35, kQwen35Text, kMuseGlimmer, kMuseGlimmerText;

std::span<const Family* const> Families();

}  // namespace ovq
