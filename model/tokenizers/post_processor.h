// PostProcessor: ids that are added around those of a text.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "model/tokenizers/json_fields.h"

namespace ovq::model {

struct PostProcessor {
  std::vector<int32_t> before;  // ids before and after those of the text
  std::vector<int32_t> after;

  // Reads the field `key` of the file; absent: nothing is added. Of templates, uses the one for a
  // single text. Ids must be below vocab_size.
  static absl::StatusOr<PostProcessor> Read(JsonFields& file, std::string_view key,
                                            int64_t vocab_size);
};

}  // namespace ovq::model
