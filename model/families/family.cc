#include "model/families/family.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <iterator>
#include <optional>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/status_macros.h"
#include "base/text.h"

namespace ovq::model {
namespace {

using Json = nlohmann::json;

constexpr std::array kFamilies = {&kOvqHybrid,
                                  &kRwkv7Backbone,
                                  &kFlaGatedDeltaNet,
                                  &kFlaKda,
                                  &kKimiLinear,
                                  &kFlaMesaNet,
                                  &kMamba2,
                                  &kStateSpacesMamba2,
                                  &kGraniteMoeHybrid,
                                  &kOlmoHybrid,
                                  &kCohere2,
                                  &kQwen35,
                                  &kQwen35Text,
                                  &kQwen35Moe,
                                  &kQwen35MoeText,
                                  &kNemotronH,
                                  &kMuseGlimmer,
                                  &kMuseGlimmerText,
                                  &kLlama,
                                  &kMistral,
                                  &kQwen2,
                                  &kQwen3,
                                  &kSmolLm3,
                                  &kPhi3,
                                  &kOlmo2,
                                  &kOlmo3,
                                  &kGemma3,
                                  &kGemma3Text};

constexpr std::string_view kBookkeeping[] = {
    "_name_or_path",           "architectures",        "auto_map",
    "initializer_range",       "pad_token_id",         "attention_dropout",
    "max_position_embeddings", "transformers_version", "use_cache"};

bool IsBeyond64Bits(const Json& json) {
  return json.is_number_unsigned() && json.get<uint64_t>() > uint64_t{INT64_MAX};
}

double Number(const Json& json) { return json.is_number() ? json.get<double>() : NAN; }

kernels::Attrs::Value ToList(const Json& list) {
  const auto numbers = [](const Json& json) {
    std::vector<double> row;
    std::ranges::transform(json, std::back_inserter(row), Number);
    return row;
  };
  if (std::ranges::any_of(list, &Json::is_array)) {
    std::vector<std::vector<double>> rows;
    for (const Json& entry : list) {
      rows.push_back(entry.is_array() ? numbers(entry) : std::vector{Number(entry)});
    }
    return rows;
  }
  const auto is_integer = [](const Json& e) { return e.is_number_integer() && !IsBeyond64Bits(e); };
  const auto is_number = [](const Json& e) { return e.is_number() || e.is_null(); };
  if (std::ranges::all_of(list, is_integer)) return list.get<std::vector<int64_t>>();
  if (std::ranges::all_of(list, is_number)) return numbers(list);
  if (std::ranges::all_of(list, &Json::is_string)) return list.get<std::vector<std::string>>();
  return std::monostate();
}

}  // namespace

std::span<const Family* const> Families() { return kFamilies; }

TensorName::TensorName(std::string_view name) : leaf(name) {
  if (!name.starts_with(kLayerPrefix)) return;
  const size_t dot = name.find('.', kLayerPrefix.size());
  const std::string_view number = name.substr(kLayerPrefix.size(), dot - kLayerPrefix.size());
  Check(absl::SimpleAtoi(AbslView(number), &layer), "a layer's tensor has its number");
  leaf = name.substr(dot + 1);
}

std::string TensorName::With(std::string_view other_leaf, std::string_view layers) const {
  if (layer < 0) return std::string(other_leaf);
  return absl::StrCat(AbslView(layers), layer, ".", AbslView(other_leaf));
}

std::string TensorName::As(std::span<const Renamed> table, std::string_view layers) const {
  const auto fits = [this](const Renamed& renamed) { return leaf.starts_with(renamed.begin); };
  const auto found = std::ranges::find_if(table, fits);
  if (found == table.end()) return With(leaf, layers);
  const std::string_view rest = leaf.substr(found->begin.size());
  return With(absl::StrCat(AbslView(found->in_file), AbslView(rest)), layers);
}

const kernels::Attrs& ConfigFile::section(std::string_view name) const {
  static const kernels::Attrs* const empty = new kernels::Attrs;
  const auto it = sections.find(name);
  return it == sections.end() ? *empty : it->second;
}

std::span<const std::string_view> Bookkeeping() { return kBookkeeping; }

std::optional<int64_t> MostPositions(const ConfigFile& file) {
  const Json most = file.at("max_position_embeddings");
  if (IsBeyond64Bits(most)) return INT64_MAX;
  return most.is_number_integer() ? std::optional(most.get<int64_t>()) : std::nullopt;
}

std::optional<kernels::Attrs::Value> AttrValue(const Json& json) {
  if (json.is_boolean()) return json.get<bool>();
  if (json.is_string()) return json.get_ref<const std::string&>();
  if (json.is_number_float() || IsBeyond64Bits(json)) return json.get<double>();
  if (json.is_number_integer()) return json.get<int64_t>();
  if (json.is_array()) return ToList(json);
  return std::nullopt;
}

void FillAttrs(const Json& object, kernels::Attrs& attrs, std::string_view said_in) {
  for (const auto& [key, value] : object.items()) {
    if (std::ranges::find(kBookkeeping, key) != std::end(kBookkeeping)) continue;
    std::optional<kernels::Attrs::Value> attr = AttrValue(value);
    if (!attr) continue;
    attrs.Set(key, *std::move(attr), said_in.empty() ? "" : absl::StrCat(AbslView(said_in), key));
  }
}

void ReadSizes(kernels::AttrReader& file, int64_t vocab_size, int64_t hidden_size, int64_t n_layers,
               ModelConfig& config) {
  const auto size = [&file](std::string_view field, int64_t fallback, int64_t max) {
    return fallback > 0 ? file.IntOr(field, fallback, 1, max) : file.Int(field, 1, max);
  };
  config.vocab_size = size("vocab_size", vocab_size, kMaxVocab);
  config.hidden_size = size("hidden_size", hidden_size, kMaxHiddenSize);
  config.n_layers = static_cast<int>(size("num_hidden_layers", n_layers, kMaxLayers));
}

int64_t Peek(const kernels::Attrs& fields, std::string_view name, int64_t fallback, int64_t max) {
  kernels::AttrReader reader(fields);
  const int64_t value = reader.IntOr(name, fallback, 1, max);
  return reader.ok() ? value : fallback;
}

absl::StatusOr<kernels::TensorView> GetTensor(const ModelConfig& config, std::string_view name,
                                              const kernels::Shape& shape, Weights& weights,
                                              std::deque<std::vector<std::byte>>& copies) {
  const Family& family = *config.family;
  const TensorName parts(name);
  std::vector<TensorInFile> places;
  if (family.tensor != nullptr) {
    places = family.tensor(config, parts, shape);
  } else {
    places = {{parts.As(family.names, family.layers), shape}};
  }
  const auto there = std::ranges::find_if(
      places, [&](const TensorInFile& place) { return weights.Has(place.name); });
  const TensorInFile& place = there == places.end() ? places.front() : *there;
  ASSIGN_OR_RETURN(kernels::TensorView view, weights.GetTensor(place.name, place.shape));
  view.shape = shape;
  const int64_t n_run = place.run == 0 ? shape.elements() : place.run;
  const size_t element = kernels::DTypeBytes(view.dtype),
               run = static_cast<size_t>(n_run) * element;
  const int64_t n_runs = n_run == 0 ? 0 : shape.elements() / n_run;
  Check(n_runs * n_run == shape.elements() &&
            place.first + ((n_runs - 1) / place.repeat) * place.stride + n_run <=
                place.shape.elements(),
        "a part lies in its tensor");
  std::byte* const from = view.as<std::byte>() + static_cast<size_t>(place.first) * element;
  view.data = from;
  if (n_runs == 1 && reinterpret_cast<uintptr_t>(from) % element == 0) return view;
  std::vector<std::byte>& copy = copies.emplace_back(view.bytes());
  for (int64_t i = 0; i < n_runs; ++i) {
    std::memcpy(copy.data() + static_cast<size_t>(i) * run,
                from + static_cast<size_t>(i / place.repeat * place.stride) * element, run);
  }
  view.data = copy.data();
  return view;
}

}  // namespace ovq::model
