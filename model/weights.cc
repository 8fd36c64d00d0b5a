#include "model/weights.h"

#include <algorithm>
#include <cstring>
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
#include "model/gguf/gguf_weights.h"

namespace ovq::model {
namespace {

constexpr size_t kMaxIndexBytes = 100'000'000;

// The bits of the exponent, all set in infinities and NaNs.
uint32_t ExponentBits(kernels::DType dtype) {
  if (dtype == kernels::DType::kF32) return 0x7f800000;
  return dtype == kernels::DType::kBF16 ? 0x7f80 : 0x7c00;
}

// Index, in memory order, of the first element that is infinite or NaN. The loop over a block has
// no branch, so the compiler vectorizes it and it runs at memory speed.
template <class Bits>
std::optional<int64_t> FirstNotFinite(const kernels::TensorView& tensor) {
  constexpr int64_t kBlock = 4096;
  const auto exponent = static_cast<Bits>(ExponentBits(tensor.dtype));
  const auto is_bad = [&](int64_t i) {
    Bits bits;
    std::memcpy(&bits, tensor.as<const std::byte>() + i * sizeof(Bits), sizeof(Bits));
    return (bits & exponent) == exponent;
  };
  const int64_t n = tensor.shape.elements();
  for (int64_t begin = 0; begin < n; begin += kBlock) {
    const int64_t end = std::min(begin + kBlock, n);
    Bits found = 0;
    for (int64_t i = begin; i < end; ++i) found |= static_cast<Bits>(is_bad(i));
    for (int64_t i = begin; found != 0 && i < end; ++i) {
      if (is_bad(i)) return i;
    }
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
  if (IsGguf(folder)) return weights.OpenGguf(folder);
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
  files_.push_back({.name = name});
  File& file = files_.back();
  const std::string path = absl::StrCat(folder, "/", name);
  absl::Status problems = SafetensorsFile::Open(path, file.content);
  damaged_.insert(file.content.damaged().begin(), file.content.damaged().end());
  if (listed != nullptr && !problems.ok() && file.content.tensors().empty()) {
    for (const auto& [tensor, shard] : *listed) {
      if (shard == name) damaged_.emplace(tensor, problems);
    }
  }
  for (const auto& [tensor, stored] : file.content.tensors()) {
    tensors_[tensor] = stored;
    if (listed == nullptr) continue;
    const auto entry = listed->find(tensor);
    if (entry != listed->end() && entry->second == name) continue;
    AddProblems(problems,
                Damaged(path, tensor, absl::StrCat("is not listed for this file by ", list_)));
  }
  return problems;
}

absl::Status Weights::OpenGguf(const std::string& path) {
  list_ = std::filesystem::path(path).filename().string();
  unread_ = GgufFile::Open(path, gguf_);
  if (!unread_.ok()) return unread_;
  absl::StatusOr<std::vector<GgufWeight>> weights = GgufWeights(gguf_);
  if (!weights.ok()) return unread_ = InContext(path, weights.status());
  for (GgufWeight& weight : *weights) {
    const bool is_one = weight.parts.size() == 1;
    std::vector<std::string> names = is_one ? std::vector{weight.name} : weight.names;
    for (size_t i = 0; i < names.size(); ++i) {
      const GgufTensor& part = weight.parts[i];
      tensors_[names[i]] = {std::string(part.type->name), is_one ? weight.shape : part.shape,
                            part.bytes};
    }
    if (!weight.write_row) continue;
    Add(weight.name, {.shape = weight.shape,
                      .parts = std::move(names),
                      .write = [weight](int64_t first, std::span<float> rows) {
                        const auto width =
                            static_cast<size_t>(weight.shape[weight.shape.rank() - 1]);
                        for (size_t at = 0; at < rows.size(); at += width) {
                          weight.write_row(first++, rows.subspan(at, width));
                        }
                      }});
  }
  return absl::OkStatus();
}

const std::string& Weights::FileNameFor(std::string_view name) const {
  for (const File& file : files_) {
    if (file.content.tensors().contains(name)) return file.name;
  }
  const auto stored = tensors_.find(name);
  if (files_.empty() && stored != tensors_.end()) return gguf_.PartThatHolds(stored->second.bytes);
  return list_;
}

absl::StatusOr<kernels::TensorView> Weights::GetTensor(std::string_view name,
                                                       const kernels::Shape& shape) {
  const auto made = made_.find(name);
  if (made != made_.end()) return Make(made->first, made->second, shape);
  const auto it = tensors_.find(name);
  if (it == tensors_.end()) {
    const auto damaged = damaged_.find(name);
    if (damaged != damaged_.end()) return damaged->second;
    if (!unread_.ok()) return unread_;
    return absl::NotFoundError(
        absl::StrCat(list_, ": tensor ", Quoted(name), " is missing; expected ", shape.ToString()));
  }
  const StoredTensor& stored = it->second;
  const bool is_new = used_.insert(it->first).second;
  const auto wrong = [&](const auto&... what) {
    return absl::InvalidArgumentError(
        absl::StrCat(FileNameFor(name), ": ", it->first, ": expected ", what...));
  };
  if (stored.shape != shape) return wrong(shape.ToString(), ", got ", stored.shape.ToString());
  const std::optional<kernels::DType> dtype = FloatDType(stored.dtype);
  if (!dtype) return wrong("F32, BF16 or F16, got ", stored.dtype);
  // Nobody writes through the view.
  const kernels::TensorView view = {const_cast<std::byte*>(stored.bytes.data()), *dtype, shape};
  if (!is_new) return view;  // requested part by part: it is checked once
  const std::optional<int64_t> bad = view.dtype == kernels::DType::kF32
                                         ? FirstNotFinite<uint32_t>(view)
                                         : FirstNotFinite<uint16_t>(view);
  if (!bad) return view;
  uint32_t element = 0;
  const size_t size = kernels::DTypeBytes(*dtype);
  std::memcpy(&element, stored.bytes.data() + static_cast<size_t>(*bad) * size, size);
  return wrong("finite numbers, got ", kernels::FloatAt({&element, *dtype, {1}}, 0), " at ",
               ElementPlace(*bad, shape));
}

absl::StatusOr<kernels::TensorView> Weights::Make(const std::string& name, const MadeTensor& tensor,
                                                  const kernels::Shape& shape) {
  used_.insert(tensor.parts.begin(), tensor.parts.end());
  const auto wrong = [&](const auto&... what) {
    return absl::InvalidArgumentError(
        absl::StrCat(FileNameFor(tensor.parts.empty() ? name : tensor.parts.front()), ": ", name,
                     ": expected ", what...));
  };
  if (tensor.shape != shape) return wrong(shape.ToString(), ", got ", tensor.shape.ToString());
  const auto [entry, is_new] = elements_.try_emplace(name);
  std::vector<std::byte>& to = entry->second;
  // A tensor that files have in float32 stays so: a reordered vector loses nothing.
  const bool stays =
      !tensor.parts.empty() && std::ranges::all_of(tensor.parts, [&](const auto& part) {
        const auto stored = tensors_.find(part);
        return stored != tensors_.end() && stored->second.dtype == "F32";
      });
  const kernels::DType dtype = stays ? kernels::DType::kF32 : made_dtype_;
  const kernels::TensorView all = {to.data(), dtype, shape};
  if (!is_new) return all;
  to.resize(all.bytes());
  constexpr int64_t kRows = 64;
  const int64_t width = shape.rank() == 0 ? 1 : shape[shape.rank() - 1],
                n_rows = width == 0 ? 0 : shape.elements() / width;
  const size_t row_bytes = static_cast<size_t>(width) * kernels::DTypeBytes(dtype);
  std::vector<float> rows;
  for (int64_t first = 0; first < n_rows; first += kRows) {
    rows.resize(static_cast<size_t>(std::min(kRows, n_rows - first) * width));
    tensor.write(first, rows);
    const auto n = static_cast<int64_t>(rows.size());
    if (const auto bad = FirstNotFinite<uint32_t>({rows.data(), kernels::DType::kF32, {n}})) {
      elements_.erase(entry);
      return wrong("finite numbers, got ", rows[static_cast<size_t>(*bad)], " at ",
                   ElementPlace(first * width + *bad, shape));
    }
    std::byte* const at = to.data() + static_cast<size_t>(first) * row_bytes;
    if (dtype == kernels::DType::kF32) {
      std::memcpy(at, rows.data(), rows.size() * sizeof(float));
    } else {
      std::ranges::transform(rows, reinterpret_cast<kernels::BF16*>(at), kernels::RoundToBF16);
    }
  }
  return kernels::TensorView{to.data(), dtype, shape};
}

absl::Status Weights::CheckAllUsed(bool (*may_be_unused)(std::string_view name)) const {
  absl::Status problems;
  for (const auto& [name, stored] : tensors_) {
    if (used_.contains(name) || may_be_unused(name)) continue;
    AddProblems(problems,
                absl::InvalidArgumentError(absl::StrCat(
                    FileNameFor(name), ": tensor ", Quoted(name), " ", stored.shape.ToString(),
                    ": no part of the model that config.json describes uses it")));
  }
  return problems;
}

absl::Status Weights::CheckWhole() const {
  absl::Status problems = gguf_.CheckWhole();
  for (const File& file : files_) AddProblems(problems, file.content.CheckWhole());
  return problems;
}

StoredTensors Weights::RemoveUnused(bool (*may_be_unused)(std::string_view name)) {
  StoredTensors unused;
  for (auto at = tensors_.begin(); at != tensors_.end();) {
    const auto next = std::next(at);
    if (!used_.contains(at->first) && may_be_unused(at->first)) unused.insert(tensors_.extract(at));
    at = next;
  }
  return unused;
}

std::string Weights::Fingerprint() const {
  Sha256 hash;
  for (const auto& [name, stored] : tensors_) {
    hash.AddText(name);
    hash.AddText(stored.dtype);
    hash.AddText(stored.shape.ToString());
    hash.Add(stored.bytes.data(), stored.bytes.size());
  }
  return hash.Hex();
}

int64_t Weights::elements() const {
  int64_t sum = 0;
  std::set<std::string_view> parts;
  for (const auto& [name, made] : made_) {
    if (!made.parts.empty()) sum += made.shape.elements();  // else its elements are counted already
    parts.insert(made.parts.begin(), made.parts.end());
  }
  for (const auto& [name, stored] : tensors_) {
    if (!parts.contains(name)) sum += stored.shape.elements();
  }
  return sum;
}

}  // namespace ovq::model
