#include <array>

#include "model/families/family.h"

namespace ovq {
namespace {

constexpr std::array<const Family*, 6> kFamilies = {
    &kOvqHybrid, &kRwkv7Backbone, &kFlaGatedDeltaNet, &kFlaMesaNet, &kMamba2, &kStateSpacesMamba2};

}  // namespace

std::span<const Family* const> Families() { return kFamilies; }

}  // namespace ovq
