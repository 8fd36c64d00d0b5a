#include "model/weights.h"

#include <algorithm>
#include <filesystem>
#include <map>
#include <optional>
#include <span>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/files.h"
#include "base/problems.h"
#include "base/sha256.h"
#include "base/status_macros.h"
#include "base/text.h"

namespace ovq::model {
namespace {

constexpr size_t kMaxIndexBytes = 100'000'000;

// The bits of the exponent, all set in infinities and NaNs; 0: weights cannot have this type.
uint32_t ExponentBits(kernels::DType dtype) {
  switch (dtype) {
    case kernels::DType::kF32:
      return 0x7f800000;
    case kernels::DType::kBF16:
      return 0x7f80;
    case kernels::DType::kF16:
      return 0x7c00;
    default:
      return 0;
  }
}

// Index, in memory order, of the first element that is infinite or NaN. The loop over a block has
// no branch, so the compiler vectorizes it and it runs at memory speed.
template <class Bits>
std::optional<int64_t> FirstNotFinite(const kernels::TensorView& tensor) {
  constexpr size_t kBlock = 4096;
  const auto exponent = static_cast<Bits>(ExponentBits(tensor.dtype));
  const auto is_bad = [exponent](Bits bits) { return (bits & exponent) == exponent; };
  const std::span values(tensor.as<const Bits>(), static_cast<size_t>(tensor.shape.elements()));
  for (size_t begin = 0; begin < values.size(); begin += kBlock) {
    const std::span block = values.subspan(begin, std::min(kBlock, values.size() - begin));
    Bits found = 0;
    for (const Bits bits : block) found |= static_cast<Bits>(is_bad(bits));
    if (found != 0) return std::ranges::find_if(block, is_bad) - values.begin();
  }
  return std::nullopt;
}

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

absl::Status Weights::Open(const std::string& folder, Weights& weights) {
  constexpr char kSingle[] = "model.safetensors", kIndex[] = "model.safetensors.index.json";
  const auto exists = [&](const char* name) {
    std::error_code error;
    return std::filesystem::exists(absl::StrCat(folder, "/", name), error);
  };
  const bool is_sharded = !exists(kSingle) && exists(kIndex);
  weights.list_ = is_sharded ? kIndex : kSingle;
  if (!is_sharded) {
    const absl::Status status = weights.OpenFile(folder, kSingle, nullptr);
    if (weights.tensors_.empty()) weights.unread_ = status;
    return status;
  }
  const std::string index = absl::StrCat(folder, "/", kIndex);
  ShardByTensor shard_by_tensor;
  absl::Status problems = ReadIndex(index, shard_by_tensor, weights.damaged_);
  if (shard_by_tensor.empty()) weights.unread_ = problems;
  std::set<std::string> shards;
  for (const auto& [tensor, shard] : shard_by_tensor) shards.insert(shard);
  for (const std::string& shard : shards) {
    AddProblems(problems, weights.OpenFile(folder, shard, &shard_by_tensor));
  }
  for (const auto& [tensor, shard] : shard_by_tensor) {
    if (weights.Has(tensor)) continue;
    weights.damaged_[tensor] =
        Damaged(index, tensor, absl::StrCat("is not in ", shard, ", where it is said to be"));
    AddProblems(problems, weights.damaged_[tensor]);
  }
  return problems;
}

absl::Status Weights::OpenFile(const std::string& folder, const std::string& name,
                               const ShardByTensor* listed) {
  File& file = files_.emplace_back(name);
  const std::string path = absl::StrCat(folder, "/", name);
  absl::Status problems = SafetensorsFile::Open(path, file.content);
  damaged_.insert(file.content.damaged().begin(), file.content.damaged().end());
  if (listed != nullptr && !problems.ok() && file.content.tensors().empty()) {
    for (const auto& [tensor, shard] : *listed) {
      if (shard == name) damaged_.emplace(tensor, problems);
    }
  }
  for (const auto& [tensor, view] : file.content.tensors()) {
    tensors_[tensor] = view;
    if (listed == nullptr) continue;
    const auto entry = listed->find(tensor);
    if (entry != listed->end() && entry->second == name) continue;
    AddProblems(problems,
                Damaged(path, tensor, absl::StrCat("is not listed for this file by ", list_)));
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
  const auto wrong = [&](const auto&... what) {
    return absl::InvalidArgumentError(
        absl::StrCat(FileNameFor(name), ": ", it->first, ": expected ", what...));
  };
  if (view.shape != shape) return wrong(shape.ToString(), ", got ", view.shape.ToString());
  if (ExponentBits(view.dtype) == 0) {
    return wrong("F32, BF16 or F16, got ", kernels::DTypeName(view.dtype));
  }
  if (!is_new) return view;  // requested part by part: it is checked once
  const std::optional<int64_t> bad = view.dtype == kernels::DType::kF32
                                         ? FirstNotFinite<uint32_t>(view)
                                         : FirstNotFinite<uint16_t>(view);
  if (!bad) return view;
  return wrong("finite numbers, got ", kernels::FloatAt(view, *bad), " at ",
               ElementPlace(*bad, shape));
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
