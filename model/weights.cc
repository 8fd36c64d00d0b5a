#include "model/weights.h"

#include <filesystem>
#include <map>
#include <optional>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/files.h"
#include "base/problems.h"
#include "base/sha256.h"
#include "base/status_macros.h"
#include "base/text.h"
#include "model/finite.h"

namespace ovq::model {
namespace {

constexpr size_t kMaxIndexBytes = 100'000'000;

// Reads the index's map from tensor to shard file.
absl::Status ReadIndex(const std::string& path, std::map<std::string, std::string>& shard_by_tensor,
                       DamagedTensors& damaged) {
  ASSIGN_OR_RETURN(std::string text, ReadFile(path, kMaxIndexBytes));
  ASSIGN_OR_RETURN(nlohmann::json json, ParseJsonObject(text, path));
  const auto map = json.find("weight_map");
  if (map == json.end() || !IsTextMap(*map) || map->empty()) {
    return Damaged(path, "weight_map is not a map from tensor names to file names");
  }
  absl::Status problems;
  for (const auto& [tensor, value] : map->items()) {
    const std::string& file = value.get_ref<const std::string&>();
    if (file.empty() || file.front() == '.' ||
        file.find_first_of(std::string_view("/\\\0", 3)) != std::string::npos) {
      damaged[tensor] = absl::InvalidArgumentError(
          absl::StrCat(path, ": tensor ", Quoted(tensor), ": ", Quoted(file),
                       " is not the name of a file beside the index"));
      AddProblems(problems, damaged[tensor]);
    } else {
      shard_by_tensor[tensor] = file;
    }
  }
  return problems;
}

// The position of an element as text: "[3, 17]".
std::string ElementPlace(int64_t element, const kernels::Shape& shape) {
  std::vector<int64_t> place(static_cast<size_t>(shape.rank()));
  for (int i = shape.rank() - 1; i >= 0; --i) {
    place[i] = element % shape[i];
    element /= shape[i];
  }
  return absl::StrCat("[", absl::StrJoin(place, ", "), "]");
}

}  // namespace

absl::StatusOr<Weights> Weights::Open(const std::string& folder) {
  Weights weights;
  const absl::Status status = Open(folder, weights);
  if (!status.ok()) return status;
  return weights;
}

absl::Status Weights::Open(const std::string& folder, Weights& weights) {
  weights.list_ = "model.safetensors";
  const std::string single = absl::StrCat(folder, "/", weights.list_);
  const std::string index = absl::StrCat(single, ".index.json");
  std::error_code error;
  if (!std::filesystem::exists(single, error) && std::filesystem::exists(index, error)) {
    weights.list_ = "model.safetensors.index.json";
    return weights.OpenShards(folder);
  }
  File& file = weights.files_.emplace_back();
  file.name = weights.list_;
  const absl::Status status = SafetensorsFile::Open(single, file.content);
  weights.tensors_ = file.content.tensors();
  weights.damaged_ = file.content.damaged();
  if (weights.tensors_.empty()) weights.unread_ = status;
  return status;
}

absl::Status Weights::OpenShards(const std::string& folder) {
  const std::string index = absl::StrCat(folder, "/", list_);
  ShardByTensor shard_by_tensor;
  absl::Status problems = ReadIndex(index, shard_by_tensor, damaged_);
  if (shard_by_tensor.empty()) unread_ = problems;
  std::set<std::string> shards;
  for (const auto& [tensor, shard] : shard_by_tensor) shards.insert(shard);
  for (const std::string& shard : shards) {
    AddProblems(problems, OpenShard(folder, shard, shard_by_tensor));
  }
  for (const auto& [tensor, shard] : shard_by_tensor) {
    if (tensors_.contains(tensor) || damaged_.contains(tensor)) continue;
    damaged_[tensor] =
        Damaged(index, tensor, absl::StrCat("is not in ", shard, ", where it is said to be"));
    AddProblems(problems, damaged_[tensor]);
  }
  return problems;
}

absl::Status Weights::OpenShard(const std::string& folder, const std::string& shard,
                                const ShardByTensor& shard_by_tensor) {
  File& file = files_.emplace_back();
  file.name = shard;
  const std::string path = absl::StrCat(folder, "/", shard);
  absl::Status problems = SafetensorsFile::Open(path, file.content);
  damaged_.insert(file.content.damaged().begin(), file.content.damaged().end());
  if (!problems.ok() && file.content.tensors().empty()) {
    for (const auto& [tensor, of] : shard_by_tensor) {
      if (of == shard) damaged_.emplace(tensor, problems);
    }
  }
  for (const auto& [name, view] : file.content.tensors()) {
    tensors_[name] = view;
    const auto listed = shard_by_tensor.find(name);
    if (listed != shard_by_tensor.end() && listed->second == shard) continue;
    AddProblems(problems,
                Damaged(path, name, absl::StrCat("is not listed for this file by ", list_)));
  }
  return problems;
}

const std::string& Weights::FileNameFor(std::string_view name) const {
  for (const File& file : files_) {
    if (file.content.tensors().contains(name)) return file.name;
  }
  return list_;
}

absl::StatusOr<kernels::TensorView> Weights::GetTensor(std::string_view name,
                                                       const kernels::Shape& shape) {
  const auto it = tensors_.find(name);
  if (it == tensors_.end()) {
    const auto damaged = damaged_.find(name);
    if (damaged != damaged_.end()) return damaged->second;
    if (!unread_.ok()) return unread_;
    return absl::NotFoundError(
        absl::StrCat(list_, ": tensor ", Quoted(name), " is missing; expected ", shape.ToString()));
  }
  const kernels::TensorView& view = it->second;
  const bool is_new = used_.insert(it->first).second;
  if (view.shape != shape) {
    return absl::InvalidArgumentError(absl::StrCat(FileNameFor(name), ": ", it->first,
                                                   ": expected ", shape.ToString(), ", got ",
                                                   view.shape.ToString()));
  }
  if (view.dtype != kernels::DType::kF32 && view.dtype != kernels::DType::kBF16 &&
      view.dtype != kernels::DType::kF16) {
    return absl::InvalidArgumentError(absl::StrCat(FileNameFor(name), ": ", it->first,
                                                   ": expected F32, BF16 or F16, got ",
                                                   kernels::DTypeName(view.dtype)));
  }
  // Some tensors are requested part by part; check each once.
  const std::optional<int64_t> bad = is_new ? FirstNotFinite(view) : std::nullopt;
  if (!bad) return view;
  return absl::InvalidArgumentError(
      absl::StrCat(FileNameFor(name), ": ", it->first, ": expected finite numbers, got ",
                   kernels::FloatAt(view, *bad), " at ", ElementPlace(*bad, shape)));
}

absl::Status Weights::CheckAllUsed(bool (*may_be_unused)(std::string_view name)) const {
  absl::Status problems;
  for (const auto& [name, view] : tensors_) {
    if (used_.contains(name) || may_be_unused(name)) continue;
    AddProblems(problems,
                absl::InvalidArgumentError(absl::StrCat(
                    FileNameFor(name), ": tensor ", Quoted(name), " ", view.shape.ToString(),
                    ": no part of the model that config.json describes uses it")));
  }
  return problems;
}

absl::Status Weights::CheckWhole() const {
  absl::Status problems;
  for (const File& file : files_) AddProblems(problems, file.content.CheckWhole());
  return problems;
}

kernels::TensorMap Weights::RemoveUnused(bool (*may_be_unused)(std::string_view name)) {
  kernels::TensorMap unused;
  for (auto at = tensors_.begin(); at != tensors_.end();) {
    const auto next = std::next(at);
    if (!used_.contains(at->first) && may_be_unused(at->first)) unused.insert(tensors_.extract(at));
    at = next;
  }
  return unused;
}

std::string Weights::Fingerprint() const {
  Sha256 hash;
  for (const auto& [name, view] : tensors_) {
    hash.AddText(name);
    hash.AddText(kernels::DTypeName(view.dtype));
    hash.AddText(view.shape.ToString());
    hash.Add(view.data, view.bytes());
  }
  return hash.Hex();
}

int64_t Weights::elements() const {
  int64_t sum = 0;
  for (const auto& [name, view] : tensors_) sum += view.shape.elements();
  return sum;
}

}  // namespace ovq::model
