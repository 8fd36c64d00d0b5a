#include "model/families/renaming.h"

#include "absl/strings/str_cat.h"

namespace ovq {
namespace {

std::string Replaced(std::string_view name, std::span<const Renamed> table) {
  for (const Renamed& renamed : table) {
    if (!name.starts_with(renamed.begin)) continue;
    return absl::StrCat(std::string(renamed.in_file),
                        std::string(name.substr(renamed.begin.size())));
  }
  return std::string(name);
}

}  // namespace

std::string WithNewBegin(std::string_view name, std::span<const Renamed> global,
                         std::string_view layers_in_file, std::span<const Renamed> of_layer) {
  constexpr std::string_view kLayers = "model.layers.";
  if (!name.starts_with(kLayers)) return Replaced(name, global);
  const size_t leaf = name.find('.', kLayers.size()) + 1;
  return absl::StrCat(std::string(layers_in_file),
                      std::string(name.substr(kLayers.size(), leaf - kLayers.size())),
                      Replaced(name.substr(leaf), of_layer));
}

}  // namespace ovq
