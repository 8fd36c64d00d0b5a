// Weights: the tensors of a model folder, from one safetensors file or shards with an index, mapped
// read-only.
#pragma once

#include <map>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "model/safetensors.h"

namespace ovq::model {

class Weights {
 public:
  // Opens model.safetensors, else the shards of model.safetensors.index.json, and as many tensors
  // as can be read. OK, or all problems (SplitProblems).
  static absl::Status Open(const std::string& folder, Weights& weights);

  // The named tensor, checked to be F32, BF16 or F16, of this shape and finite throughout. NotFound
  // if absent; InvalidArgument "model.safetensors: model.norm.weight: expected [64], got [32]";
  // Open's error if it could not be read.
  absl::StatusOr<kernels::TensorView> GetTensor(std::string_view name, const kernels::Shape& shape);
  // Whether the files name this tensor, readable or not.
  bool Has(std::string_view name) const {
    return tensors_.contains(name) || damaged_.contains(name);
  }
  // InvalidArgument naming the tensors that were never requested, except those that may_be_unused.
  absl::Status CheckAllUsed(bool (*may_be_unused)(std::string_view name)) const;
  // Removes the tensors that were never requested and that may_be_unused from tensors() and
  // elements(), and returns them.
  kernels::TensorMap RemoveUnused(bool (*may_be_unused)(std::string_view name));
  // Call this after reading the tensors: DataLoss for each file that was truncated, written or
  // unreadable meanwhile. Data read from it must be discarded.
  absl::Status CheckWhole() const;
  // SHA-256 over names, dtypes, shapes and data, hex; part of the model's fingerprint, with its
  // config.
  std::string Fingerprint() const;
  int64_t elements() const;  // in tensors()
  const kernels::TensorMap& tensors() const { return tensors_; }

 private:
  using ShardByTensor = std::map<std::string, std::string>;  // file names, from the index
  // listed: the index, null without one.
  absl::Status OpenFile(const std::string& folder, const std::string& name,
                        const ShardByTensor* listed);
  const std::string& FileNameFor(std::string_view name) const;

  struct File {
    std::string name;  // without folder
    SafetensorsFile content = {};
  };
  std::vector<File> files_;
  std::string list_;     // the file that lists the tensors
  absl::Status unread_;  // why list_ could not be read
  kernels::TensorMap tensors_;
  DamagedTensors damaged_;
  std::set<std::string, std::less<>> used_;
};

}  // namespace ovq::model
