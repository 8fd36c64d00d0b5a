// Normalizer: changes to a text before it is split.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "model/tokenizers/json_fields.h"

namespace ovq::model {

// Immutable; any thread.
class Normalizer {
 public:
  // Reads the field `key` of the file; absent: texts stay as they are.
  static absl::StatusOr<Normalizer> Read(JsonFields& file, std::string_view key);

  // Changes `text`, which is and stays valid UTF-8. Errors are those of Regex, and InvalidArgument
  // for a text that grows beyond MostBytes.
  absl::Status Apply(std::string& text) const;

  // Changes a text to one of not much more than `most` bytes.
  using Stage = std::function<absl::Status(std::string& text, size_t most)>;

 private:
  std::vector<Stage> stages_;
};

}  // namespace ovq::model
