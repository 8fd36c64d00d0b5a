// Weights of a model folder: safetensors mapped read-only, one file or shards with an index.
#pragma once

#include <map>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "model/safetensors.h"

namespace ovq {

class Weights {
 public:
  // model.safetensors, else the shards of model.safetensors.index.json.
  static absl::StatusOr<Weights> Open(const std::string& folder);
  // As many of them as can be read: OK, or all that is wrong (SplitProblems).
  static absl::Status Open(const std::string& folder, Weights& weights);

  // The named tensor, checked: InvalidArgument "model.safetensors: model.norm.weight: expected
  // [64], got [32]". NotFound if absent; what Open said of it, if it could not be read. F32, BF16
  // and F16 are accepted, finite throughout.
  absl::StatusOr<TensorView> GetTensor(std::string_view name, const Shape& shape);
  // Whether the files speak of this tensor.
  bool Has(std::string_view name) const {
    return tensors_.contains(name) || damaged_.contains(name);
  }
  // InvalidArgument naming the tensors that nobody asked for, but for those that may_be_unused.
  absl::Status CheckAllUsed(bool (*may_be_unused)(std::string_view name)) const;
  // Takes those that nobody asked for, and that may_be_unused, out of tensors() and elements().
  TensorMap RemoveUnused(bool (*may_be_unused)(std::string_view name));
  // When they have been read: DataLoss for each file that was cut short, or written, or could not
  // be read meanwhile. What was read of it is worth nothing.
  absl::Status CheckWhole() const;
  // SHA-256 over names, dtypes, shapes and data, hex: the model's fingerprint with its config.
  std::string Fingerprint() const;
  int64_t elements() const;  // of tensors()
  const TensorMap& tensors() const { return tensors_; }

 private:
  using ShardByTensor = std::map<std::string, std::string>;  // tensor to file, as the index says
  absl::Status OpenShards(const std::string& folder);
  absl::Status OpenShard(const std::string& folder, const std::string& shard,
                         const ShardByTensor& shard_by_tensor);
  const std::string& FileNameFor(std::string_view name) const;

  struct File {
    std::string name;  // without its folder
    SafetensorsFile content;
  };
  std::vector<File> files_;
  std::string list_;     // the file that says which tensors there are
  absl::Status unread_;  // why it could not be read
  TensorMap tensors_;
  DamagedTensors damaged_;
  std::set<std::string, std::less<>> used_;
};

}  // namespace ovq
