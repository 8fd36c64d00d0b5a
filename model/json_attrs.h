// Fields of a JSON object as typed values.
#pragma once

#include <span>
#include <string_view>

#include "absl/status/status.h"
#include "base/json.h"
#include "kernels/common/attrs.h"

namespace ovq {

// The scalars of an object and its lists of integers only or of strings only; other lists count as
// null. Nulls and objects are left out, and so is what transformers writes for its own use
// (Bookkeeping). InvalidArgument names an integer beyond 64 bits.
absl::Status FillAttrs(const nlohmann::json& object, Attrs& attrs);

// Fields of a config.json that mean nothing here.
std::span<const std::string_view> Bookkeeping();

}  // namespace ovq
