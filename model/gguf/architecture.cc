#include "model/gguf/architecture.h"

#include <algorithm>
#include <vector>

#include "absl/strings/str_cat.h"
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

void ReadRopeDivisors(ArchitectureKeys& keys, nlohmann::json& config) {
  const nlohmann::json divisors = TensorNumbers(keys.file(), kRopeDivisors);
  if (divisors.empty()) return;
  if (config.contains("rope_scaling")) {
    keys.Fail("rope.scaling.type", absl::StrCat("expected none beside ", kRopeDivisors));
  }
  config["rope_scaling"] = {{"rope_type", "divided"}, {"divisors", divisors}};
}

nlohmann::json TensorNumbers(const GgufFile& file, std::string_view tensor) {
  nlohmann::json list = nlohmann::json::array();
  const auto found = file.tensors().find(tensor);
  if (found == file.tensors().end()) return list;
  const GgufTensor& factors = found->second;
  if (factors.shape.rank() != 1) return factors.shape.ToString();
  std::vector<float> numbers(static_cast<size_t>(factors.type->elements));
  for (size_t at = 0; at < factors.bytes.size(); at += factors.type->bytes) {
    factors.type->decode(factors.bytes.data() + at, numbers.data());
    for (const float number : numbers) list.push_back(number);
  }
  return list;
}

const GgufTensor* FindTensor(const GgufFile& file, std::string_view ending) {
  const auto found = std::ranges::find_if(
      file.tensors(), [ending](const auto& tensor) { return tensor.first.ends_with(ending); });
  return found == file.tensors().end() ? nullptr : &found->second;
}

}  // namespace ovq::model
