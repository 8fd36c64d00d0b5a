// Weights: the tensors of a model folder, from one safetensors file or shards with an index, mapped
// read-only.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "model/gguf/gguf_file.h"
#include "model/safetensors.h"

namespace ovq::model {

// A tensor that files hold in another form, for example as blocks of 4-bit integers, and whose
// elements are made at load.
struct MadeTensor {
  kernels::Shape shape;
  std::vector<std::string> parts;  // the files' tensors that it stands for; they count as used
  // Writes rows of the last dimension as float32: `first` and as many after it as fill `rows`.
  std::function<void(int64_t first, std::span<float> rows)> write;
};

class Weights {
 public:
  // Opens model.safetensors, else the shards of model.safetensors.index.json, and as many tensors
  // as can be read; or a GGUF file, whose tensors get the names of the family that they belong to.
  // OK, or all problems (SplitProblems).
  static absl::Status Open(const std::string& folder, Weights& weights);

  // The named tensor, checked to be F32, BF16 or F16, of this shape and finite throughout. It is
  // the file's, so it may begin at any address. NotFound if absent; InvalidArgument
  // "model.safetensors: model.norm.weight: expected [64], got [32]"; Open's error if it could not
  // be read.
  absl::StatusOr<kernels::TensorView> GetTensor(std::string_view name, const kernels::Shape& shape);
  // Whether the files name this tensor, readable or not.
  bool Has(std::string_view name) const {
    return tensors_.contains(name) || damaged_.contains(name) || made_.contains(name);
  }
  // Makes GetTensor give this tensor as F32, or as BF16 after SetMadeDType(kBF16), rounded once.
  void Add(const std::string& name, MadeTensor tensor) { made_[name] = std::move(tensor); }
  const std::map<std::string, MadeTensor, std::less<>>& made() const { return made_; }
  void SetMadeDType(kernels::DType dtype) { made_dtype_ = dtype; }
  // Frees the memory of all tensors that were made so far: their views end.
  void FreeMade() { elements_.clear(); }
  // Makes CheckAllUsed allow a tensor that nothing reads.
  void MarkUsed(const std::string& name) { used_.insert(name); }
  // The file, without its folder, that holds a tensor; that of all tensors' list if none does.
  const std::string& FileNameFor(std::string_view name) const;
  // InvalidArgument naming the tensors that were never requested, except those that may_be_unused.
  absl::Status CheckAllUsed(bool (*may_be_unused)(std::string_view name)) const;
  // Removes the tensors that were never requested and that may_be_unused from tensors() and
  // elements(), and returns them.
  StoredTensors RemoveUnused(bool (*may_be_unused)(std::string_view name));
  // Call this after reading the tensors: DataLoss for each file that was truncated, written or
  // unreadable meanwhile. Data read from it must be discarded.
  absl::Status CheckWhole() const;
  // SHA-256 over names, dtypes, shapes and data, hex; part of the model's fingerprint, with its
  // config.
  std::string Fingerprint() const;
  int64_t elements() const;  // of weights: in tensors(), and in made tensors for their parts
  const StoredTensors& tensors() const { return tensors_; }

 private:
  using ShardByTensor = std::map<std::string, std::string>;  // file names, from the index
  // listed: the index, null without one.
  absl::Status OpenFile(const std::string& folder, const std::string& name,
                        const ShardByTensor* listed);
  absl::Status OpenGguf(const std::string& path);
  absl::StatusOr<kernels::TensorView> Make(const std::string& name, const MadeTensor& tensor,
                                           const kernels::Shape& shape);

  struct File {
    std::string name;  // without folder
    SafetensorsFile content = {};
  };
  std::vector<File> files_;
  GgufFile gguf_;        // in their place
  std::string list_;     // the file that lists the tensors
  absl::Status unread_;  // why list_ could not be read
  StoredTensors tensors_;
  DamagedTensors damaged_;
  std::map<std::string, MadeTensor, std::less<>> made_;
  std::map<std::string, std::vector<std::byte>> elements_;  // of made tensors, until FreeMade
  kernels::DType made_dtype_ = kernels::DType::kF32;
  std::set<std::string, std::less<>> used_;
};

}  // namespace ovq::model
