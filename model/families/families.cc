#include <array>

#include "model/families/family.h"

namespace ovq::model {
namespace {

constexpr std::array kFamilies = {
    &kOvqHybrid,         &kRwkv7Backbone,    &kFlaGatedDeltaNet, &kFlaMesaNet, &kMamba2,
    &kStateSpacesMamba2, &kGraniteMoeHybrid, &kOlmoHybrid,       &kCohere2,    &kQwen35,
    &kQwen35Text,        &kMuseGlimmer,      &kMuseGlimmerText};

}  // namespace

const kernels::Attrs& ConfigFile::section(std::string_view name) const {
  static const kernels::Attrs* const empty = new kernels::Attrs;
  const auto it = sections.find(name);
  return it == sections.end() ? *empty : it->second;
}

int64_t Peek(const kernels::Attrs& fields, std::string_view name, int64_t fallback, int64_t max) {
  kernels::AttrReader reader(fields);
  const int64_t value = reader.IntOr(name, fallback, 1, max);
  return reader.ok() ? value : fallback;
}

std::span<const Family* const> Families() { return kFamilies; }

}  // namespace ovq::model
