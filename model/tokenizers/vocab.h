// Vocab: a model's tokens, strings to ids and back.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace ovq::model {

// Immutable; any thread.
class Vocab {
 public:
  using Entries = std::vector<std::pair<std::string, int32_t>>;  // ids >= 0

  // InvalidArgument if a token or an id occurs twice; `path` begins the message.
  static absl::StatusOr<Vocab> Make(Entries entries, const std::string& path);
  Vocab(Vocab&&) = default;
  Vocab& operator=(Vocab&&) = default;

  int32_t Find(std::string_view token) const;  // -1 if there is none
  const std::string* Token(int64_t id) const;  // null if there is none; ids may have gaps
  size_t longest() const { return longest_; }  // bytes of the longest token
  const Entries& entries() const { return entries_; }

 private:
  Vocab() = default;
  Entries entries_;
  absl::flat_hash_map<absl::string_view, int32_t> ids_;  // keys are views of entries_
  absl::flat_hash_map<int32_t, uint32_t> by_id_;         // indices in entries_
  size_t longest_ = 0;
};

}  // namespace ovq::model
