#include <array>

#include "model/families/family.h"

namespace ovq {
namespace {

constexpr std::array<const Family*, 2> kFamilies = {&kOvqHybrid, &kRwkv7Backbone};

}  // namespace

std::span<const Family* const> Families() { return kFamilies; }

}  // namespace ovq
