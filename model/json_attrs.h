// Fields of a JSON object as typed values.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "kernels/common/attrs.h"

namespace ovq {

// The scalars of an object and its lists of numbers only, of strings only or with lists, whose
// numbers they are then; other lists count as null. Nulls and objects are left out, and so is what
// transformers writes for its own use (Bookkeeping). An integer beyond 64 bits is a real number.
// said_in: what messages say before a field's name.
void FillAttrs(const nlohmann::json& object, Attrs& attrs, std::string_view said_in = "");

// A token id or a list of them, below vocab_size: none if the field is absent or null. Errors are
// the reader's.
std::vector<int32_t> TokenIds(const nlohmann::json& object, const char* field, int64_t vocab_size,
                              AttrReader& reader);

// Fields of a config.json that mean nothing here.
std::span<const std::string_view> Bookkeeping();

}  // namespace ovq
