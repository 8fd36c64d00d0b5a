// Family: how checkpoints of one model_type map to the decoder. Each family has a file that turns
// its config.json into a ModelConfig and gives the names of the decoder's tensors in its files.
#pragma once

#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "base/json.h"
#include "kernels/common/attrs.h"
#include "kernels/common/tensor.h"
#include "model/config.h"

namespace ovq::model {

// The place of a decoder's tensor in a checkpoint, its elements in order.
struct TensorInFile {
  std::string name;
  kernels::Shape shape;
  // For a part of a larger tensor: runs of `run` elements, the first at `first`, their beginnings
  // `stride` apart; together they are the decoder's tensor. run 0: the whole tensor.
  int64_t run = 0, first = 0, stride = 0;
};

// A config.json that is being read.
struct ConfigFile {
  const nlohmann::json& json;  // with the fields of text_config at the top
  // The scalars and flat lists at the top.
  kernels::Attrs fields = kernels::Attrs();
  // Objects with fields of mixers under our own names, as far as the family's files have them.
  std::map<std::string, kernels::Attrs, std::less<>> sections = {};

  const kernels::Attrs& section(std::string_view name) const;  // empty Attrs if absent
};

// An integer of a file, for a default that follows from it; the fallback if the field is wrong,
// which the mixer that reads it reports.
int64_t Peek(const kernels::Attrs& fields, std::string_view name, int64_t fallback, int64_t max);

struct Family {
  std::string_view model_type;
  bool is_strict;  // a field that nobody reads is an error
  // Fills in `config`, except for what all families share (dtype, special tokens, tokenizer), which
  // is read elsewhere, the dtype before. Problems of mixers stay in their configs. InvalidArgument
  // with all problems (SplitProblems), which name fields as the file does. Valid fields are filled
  // in even then, and layers whose tensors cannot be known are marked.
  absl::Status (*read)(ConfigFile& file, ModelConfig& config);
  // The candidates for the decoder's tensor `name` (docs/model-format.md) of that shape, in order,
  // at least one. The first that the file has counts; if it has none, the first is reported as
  // missing.
  std::vector<TensorInFile> (*tensor)(const ModelConfig& config, std::string_view name,
                                      const kernels::Shape& shape);
  // Tensors that writers of the family store though nothing reads them.
  bool (*is_unused)(std::string_view name_in_file);
  // A field that identifies files of this family without a model_type; empty: none.
  std::string_view marker = {};
};

extern const Family kOvqHybrid;      // docs/model-format.md
extern const Family kRwkv7Backbone;  // checkpoints of the KVM paper's code
extern const Family kFlaGatedDeltaNet;
extern const Family kFlaMesaNet;
extern const Family kMamba2;             // as written by transformers and flash-linear-attention
extern const Family kStateSpacesMamba2;  // as written by the authors' own code

// Families of transformers, in the hub's layout.
extern const Family kGraniteMoeHybrid, kOlmoHybrid, kCohere2;
extern const Family kQwen35, kQwen35Text, kMuseGlimmer, kMuseGlimmerText;

std::span<const Family* const> Families();

}  // namespace ovq::model
