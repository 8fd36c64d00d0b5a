// Tensor names that differ from the decoder's in their prefix only.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace ovq::model {

struct Renamed {
  std::string_view begin, in_file;
};

// Replaces the prefix of the decoder's `name`: for a layer's tensor model.layers.N.LEAF gives
// layers_in_file + N. + LEAF, with the first entry of `of_layer` that fits LEAF; for others uses
// the first entry of `global` that fits. Names that no entry fits stay.
std::string ReplacePrefix(std::string_view name, std::span<const Renamed> global,
                          std::string_view layers_in_file, std::span<const Renamed> of_layer);

// A tensor's name by its parts; layer -1: not of a layer.
struct LayerTensor {
  int layer = -1;
  std::string_view leaf;  // after model.layers.N.

  // The name with its leaf replaced: by `other_leaf`, or its prefix by the first entry of the table
  // that fits.
  std::string With(std::string_view other_leaf) const;
  std::string As(std::span<const Renamed> table) const;
};
LayerTensor ParseLayerTensor(std::string_view name);

}  // namespace ovq::model
