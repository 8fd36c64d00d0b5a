#include <array>

#include "model/families/family.h"

namespace ovq {
namespace {

constexpr std::array kFamilies = {
    &kOvqHybrid,         &kRwkv7Backbone,    &kFlaGatedDeltaNet, &kFlaMesaNet, &kMamba2,
    &kStateSpacesMamba2, &kGraniteMoeHybrid, &kOlmoHybrid,       &kCohere2,    &kQwen35,
    &kQwen35Text,        &kMuseGlimmer,      &kMuseGlimmerText};

}  // namespace

std::span<const Family* const> Families() { return kFamilies; }

}  // namespace ovq
