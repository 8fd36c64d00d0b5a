// Family: how checkpoints of one model_type map to the decoder. Each family has a file that turns
// its config.json into a ModelConfig and gives the names of the decoder's tensors in its files.
#pragma once

#include <cstddef>
#include <deque>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "base/json.h"
#include "kernels/common/attrs.h"
#include "kernels/common/tensor.h"
#include "model/config.h"
#include "model/weights.h"

namespace ovq::model {

// The place of a decoder's tensor in a checkpoint, its elements in order.
struct TensorInFile {
  std::string name;
  kernels::Shape shape;
  // For a part of a larger tensor: runs of `run` elements, the first at `first`, their beginnings
  // `stride` apart; together, each given `repeat` times, they are the decoder's tensor. run 0: the
  // whole tensor.
  int64_t run = 0, first = 0, stride = 0, repeat = 1;
};

// The beginning of a name, and what a family's files have in its place.
struct Renamed {
  std::string_view begin, in_file;
};

inline constexpr std::string_view kLayerPrefix = "model.layers.";

// The name of a decoder's tensor (docs/model-format.md) by its parts.
struct TensorName {
  explicit TensorName(std::string_view name);

  int layer = -1;         // of model.layers.N.LEAF; -1: not of a layer
  std::string_view leaf;  // LEAF, or the whole name

  // The name with its leaf replaced: by `other_leaf`, or its beginning by the first entry of the
  // table that fits. `layers` replaces model.layers.
  std::string With(std::string_view other_leaf, std::string_view layers = kLayerPrefix) const;
  std::string As(std::span<const Renamed> table, std::string_view layers = kLayerPrefix) const;
};

inline constexpr char kSlotsSection[] = "ovq";  // the section of any family's slots

// A config.json that is being read.
struct ConfigFile {
  const nlohmann::json& json;  // with the fields of text_config at the top
  // The scalars and flat lists at the top.
  kernels::Attrs fields = kernels::Attrs();
  // A cache policy's name: its values count where the section of the slots has them by rule.
  std::string rule = {};
  // Objects with fields of mixers under our own names, as far as the family's files have them.
  std::map<std::string, kernels::Attrs, std::less<>> sections = {};

  const kernels::Attrs& section(std::string_view name) const;  // empty Attrs if absent
  // A field of any type; null if absent.
  nlohmann::json at(const char* field) const { return json.value(field, nlohmann::json()); }
};

// A scalar or a homogeneous list as the value of a field, null as FillAttrs says; unset for nulls
// and objects.
std::optional<kernels::Attrs::Value> AttrValue(const nlohmann::json& json);
// Adds the object's scalars and homogeneous lists to `attrs`: lists of numbers, of strings, or of
// numbers and lists of numbers. Other lists count as null. Nulls, objects and Bookkeeping() are
// left out. An integer beyond 64 bits becomes a real number. Messages put said_in before a field's
// name.
void FillAttrs(const nlohmann::json& object, kernels::Attrs& attrs, std::string_view said_in = "");
// Fields of config.json that transformers writes for its own use, ignored here.
std::span<const std::string_view> Bookkeeping();
// max_position_embeddings, or the largest integer if it is larger; nothing if it is no integer.
std::optional<int64_t> MostPositions(const ConfigFile& file);

// Reads vocab_size, hidden_size and num_hidden_layers. A default of 0 makes a field obligatory.
void ReadSizes(kernels::AttrReader& file, int64_t vocab_size, int64_t hidden_size, int64_t n_layers,
               ModelConfig& config);

// An integer of a file, for a default that follows from it; the fallback if the field is wrong,
// which the mixer that reads it reports.
int64_t Peek(const kernels::Attrs& fields, std::string_view name, int64_t fallback, int64_t max);

// The name of a field that files write in two ways.
inline const char* Either(const kernels::Attrs& fields, const char* name, const char* other) {
  return fields.Has(name) ? name : other;
}

struct Family {
  std::string_view model_type;
  // Fills in `config`, except for what all families share (dtype, special tokens, tokenizer), which
  // is read elsewhere, the dtype before. Problems of mixers stay in their configs. InvalidArgument
  // with all problems (SplitProblems), which name fields as the file does. Valid fields are filled
  // in even then, and layers whose tensors cannot be known are marked.
  absl::Status (*read)(ConfigFile& file, ModelConfig& config);
  // The decoder's names in the files (TensorName::As), and what files have for model.layers.
  std::span<const Renamed> names = {};
  std::string_view layers = kLayerPrefix;
  // In place of the names: the candidates for the decoder's tensor of that shape, in order, at
  // least one. The first that the file has counts; if it has none, the first is reported as
  // missing.
  std::vector<TensorInFile> (*tensor)(const ModelConfig& config, const TensorName& name,
                                      const kernels::Shape& shape) = nullptr;
  // Tensors that writers of the family store though nothing reads them.
  bool (*is_unused)(std::string_view name_in_file) = [](std::string_view) { return false; };
  // Adds made tensors to an opened checkpoint before it is read; null: none. InvalidArgument or
  // NotFound with all problems.
  absl::Status (*prepare)(const ModelConfig& config, Weights& weights) = nullptr;
  bool is_strict = false;  // a field that nobody reads is an error
  // A field that identifies files of this family without a model_type; empty: none.
  std::string_view marker = {};
};

extern const Family kOvqHybrid;      // docs/model-format.md
extern const Family kRwkv7Backbone;  // checkpoints of the KVM paper's code
extern const Family kFlaGatedDeltaNet;
extern const Family kFlaKda;
extern const Family kFlaMesaNet;
extern const Family kMamba2;             // as written by transformers and flash-linear-attention
extern const Family kStateSpacesMamba2;  // as written by the authors' own code

// Families of transformers, in the hub's layout.
extern const Family kLlama, kMistral, kQwen2, kQwen3, kSmolLm3, kPhi3;
extern const Family kOlmo2, kOlmo3, kGemma3, kGemma3Text;
extern const Family kKimiLinear;
extern const Family kGraniteMoeHybrid, kOlmoHybrid, kCohere2;
extern const Family kQwen35, kQwen35Text, kQwen35Moe, kQwen35MoeText;
extern const Family kMuseGlimmer, kMuseGlimmerText, kNemotronH;

std::span<const Family* const> Families();

// The decoder's tensor `name` from a checkpoint of the config's family. Errors name it as the file
// does. The view is of the mapped file, or of a new entry of `copies` if its elements are not
// contiguous there, or not aligned.
absl::StatusOr<kernels::TensorView> GetTensor(const ModelConfig& config, std::string_view name,
                                              const kernels::Shape& shape, Weights& weights,
                                              std::deque<std::vector<std::byte>>& copies);

}  // namespace ovq::model
