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
std::string WithNewBegin(std::string_view name, std::span<const Renamed> global,
                         std::string_view layers_in_file, std::span<const Renamed> of_layer);

}  // namespace ovq
