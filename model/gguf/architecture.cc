#include "model/gguf/architecture.h"

#include <algorithm>

#include "base/problems.h"

namespace ovq::model {

absl::Status ArchitectureKeys::Done(std::span<const std::string_view> ignored) const {
  for (const std::string_view key : ignored) file_.metadata().Ignore(Full(key));
  absl::Status problems = reader_.status();
  for (const absl::Status& problem : SplitProblems(file_.metadata().CheckAllRead())) {
    if (problem.message().substr(0, prefix_.size()) == prefix_) AddProblems(problems, problem);
  }
  return problems;
}

int64_t NumLayers(ArchitectureKeys& keys) {
  constexpr int64_t kMostLayers = 4096;
  constexpr char kDrafts[] = "nextn_predict_layers";
  const int64_t n_blocks = keys.Int("block_count", kMostLayers),
                n_drafts = keys.IntOr(kDrafts, 0, 0);
  if (n_drafts == 0 || n_drafts < n_blocks) return n_blocks - n_drafts;
  keys.Fail(kDrafts, "expected less than block_count");
  return n_blocks;
}

int64_t HeadDim(ArchitectureKeys& keys) {
  const int64_t heads = keys.IntOr("attention.head_count", 1);
  return keys.IntOr("attention.key_length",
                    keys.Int("embedding_length") / std::max<int64_t>(heads, 1), 0);
}

const GgufTensor* FindTensor(const GgufFile& file, std::string_view ending) {
  const auto found = std::ranges::find_if(
      file.tensors(), [ending](const auto& tensor) { return tensor.first.ends_with(ending); });
  return found == file.tensors().end() ? nullptr : &found->second;
}

}  // namespace ovq::model
