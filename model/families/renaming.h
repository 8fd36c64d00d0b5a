// Names of tensors that differ from the decoder's in how they begin.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace ovq {

struct Renamed {
  std::string_view begin, in_file;
};

// The decoder's `name` with its begin replaced: by the first of `global` that fits, or of a layer's
// tensor, model.layers.N.LEAF, as layers_in_file + N. + LEAF with the first of `of_layer` that fits
// LEAF. What fits none stays.
std::string ReplacePrefix(std::string_view name, std::span<const Renamed> global,
                          std::string_view layers_in_file, std::span<const Renamed> of_layer);

// A tensor of layer `layer`, or, with -1, of none.
struct LayerTensor {
  int layer = -1;
  std::string_view leaf;  // behind model.layers.N.

  // The name with its leaf replaced: all of it, or its begin by the first of the table that fits.
  std::string With(std::string_view other_leaf) const;
  std::string As(std::span<const Renamed> table) const;
};
LayerTensor ParseLayerTensor(std::string_view name);

}  // namespace ovq
