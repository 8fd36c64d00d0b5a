#include "model/families/renaming.h"

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/check.h"

namespace ovq::model {
namespace {

constexpr std::string_view kLayers = "model.layers.";

std::string Replaced(std::string_view name, std::span<const Renamed> table) {
  for (const Renamed& renamed : table) {
    if (!name.starts_with(renamed.begin)) continue;
    return absl::StrCat(std::string(renamed.in_file),
                        std::string(name.substr(renamed.begin.size())));
  }
  return std::string(name);
}

}  // namespace

std::string ReplacePrefix(std::string_view name, std::span<const Renamed> global,
                          std::string_view layers_in_file, std::span<const Renamed> of_layer) {
  if (!name.starts_with(kLayers)) return Replaced(name, global);
  const size_t leaf = name.find('.', kLayers.size()) + 1;
  return absl::StrCat(std::string(layers_in_file),
                      std::string(name.substr(kLayers.size(), leaf - kLayers.size())),
                      Replaced(name.substr(leaf), of_layer));
}

std::string LayerTensor::With(std::string_view other_leaf) const {
  return absl::StrCat(std::string(kLayers), layer, ".", std::string(other_leaf));
}

std::string LayerTensor::As(std::span<const Renamed> table) const {
  return With(Replaced(leaf, table));
}

LayerTensor ParseLayerTensor(std::string_view name) {
  LayerTensor tensor;
  if (!name.starts_with(kLayers)) return tensor;
  const size_t dot = name.find('.', kLayers.size());
  const std::string layer(name.substr(kLayers.size(), dot - kLayers.size()));
  Check(absl::SimpleAtoi(layer, &tensor.layer), "a layer's tensor has its number");
  tensor.leaf = name.substr(dot + 1);
  return tensor;
}

}  // namespace ovq::model
