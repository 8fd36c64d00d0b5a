#include "model/tokenizers/vocab.h"

#include <algorithm>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/text.h"

namespace ovq::model {

absl::StatusOr<Vocab> Vocab::Make(Entries entries, const std::string& path) {
  Vocab vocab;
  vocab.entries_ = std::move(entries);
  vocab.ids_.reserve(vocab.entries_.size());
  vocab.by_id_.reserve(vocab.entries_.size());
  for (uint32_t i = 0; i < vocab.entries_.size(); ++i) {
    const auto& [token, id] = vocab.entries_[i];
    if (!vocab.ids_.emplace(token, id).second) {
      return absl::InvalidArgumentError(
          absl::StrCat(path, ": the token ", Quoted(token), " is given twice"));
    }
    const auto [other, added] = vocab.by_id_.emplace(id, i);
    if (!added) {
      return absl::InvalidArgumentError(
          absl::StrCat(path, ": ", Quoted(vocab.entries_[other->second].first), " and ",
                       Quoted(token), " have the same id ", id));
    }
    vocab.longest_ = std::max(vocab.longest_, token.size());
  }
  return vocab;
}

int32_t Vocab::Find(std::string_view token) const {
  const auto it = ids_.find(AbslView(token));
  return it == ids_.end() ? -1 : it->second;
}

const std::string* Vocab::Token(int64_t id) const {
  const auto it = by_id_.find(static_cast<int32_t>(id));
  return it == by_id_.end() ? nullptr : &entries_[it->second].first;
}

}  // namespace ovq::model
