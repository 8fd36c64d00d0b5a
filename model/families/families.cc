#include <array>

#include "model/families/family.h"

namespace ovq {
namespace {

constexpr std::array kFamilies = {
    &kOvqHybrid,         &kRwkv7Backbone,    &kFlaGatedDeltaNet, &kFlaMesaNet, &kMamba2,
    &kStateSpacesMamba2, &kGraniteMoeHybrid, &kOlmoHybrid,       &kCohere2,    &kQwen35,
    &kQwen35Text,        &kMuseGlimmer,      &kMuseGlimmerText};

}  // namespace

const Attrs& ConfigFile::section(std::string_view name) const {
  static const Attrs* const empty = new Attrs;
  const auto it = sections.find(name);
  return it == sections.end() ? *empty : it->second;
}

int64_t Peek(const Attrs& fields, std::string_view name, int64_t fallback, int64_t max) {
  AttrReader reader(fields);
  const int64_t value = reader.IntOr(name, fallback, 1, max);
  return reader.ok() ? value : fallback;
}

std::span<const Family* const> Families() { return kFamilies; }

}  // namespace ovq
