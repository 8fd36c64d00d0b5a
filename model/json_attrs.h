// Conversion of JSON objects to Attrs (typed fields).
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "kernels/common/attrs.h"

namespace ovq::model {

// Adds the object's scalars and homogeneous lists to `attrs`: lists of numbers, of strings, or of
// numbers and lists of numbers. Other lists count as null. Nulls, objects and Bookkeeping() are
// left out. An integer beyond 64 bits becomes a real number. Messages put said_in before a field's
// name.
void FillAttrs(const nlohmann::json& object, kernels::Attrs& attrs, std::string_view said_in = "");

// Reads a token id or a list of them, each below vocab_size; empty if the field is absent or null.
// The reader keeps errors.
std::vector<int32_t> TokenIds(const nlohmann::json& object, const char* field, int64_t vocab_size,
                              kernels::AttrReader& reader);

// Fields of config.json that transformers writes for its own use, ignored here.
std::span<const std::string_view> Bookkeeping();

}  // namespace ovq::model
