// The post-processor: ids that are added around those of a text.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "model/tokenizers/json_fields.h"

namespace ovq {

struct PostProcessor {
  std::vector<int32_t> before;  // the ids of the text
  std::vector<int32_t> after;

  // The field `key` of the file; absent: nothing is added. Of templates it is the one for a single
  // text. Ids must be below vocab_size.
  static absl::StatusOr<PostProcessor> Read(JsonFields& file, std::string_view key,
                                            int64_t vocab_size);
};

}  // namespace ovq
