#include "model/weights.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <map>
#include <optional>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/files.h"
#include "base/json.h"
#include "base/sha256.h"
#include "base/text.h"

namespace ovq {
namespace {

constexpr size_t kPrefixBytes = 8;  // the header's length, little-endian
constexpr uint64_t kMaxHeaderBytes = 100'000'000;
constexpr size_t kMaxIndexBytes = 100'000'000;

// One line of a header: where a tensor lies in the data section.
struct Entry {
  std::string name;
  DType dtype;
  Shape shape;
  uint64_t begin;
  uint64_t end;
};

absl::Status Damaged(const std::string& path, std::string_view what) {
  return absl::DataLossError(absl::StrCat(path, ": ", std::string(what)));
}

absl::Status Damaged(const std::string& path, std::string_view tensor, std::string_view what) {
  return Damaged(path, absl::StrCat("tensor ", Quoted(tensor), ": ", std::string(what)));
}

std::optional<DType> ParseDType(std::string_view name) {
  for (DType dtype : {DType::kF32, DType::kBF16, DType::kF16, DType::kI32, DType::kU32}) {
    if (name == DTypeName(dtype)) return dtype;
  }
  return std::nullopt;
}

Shape MakeShape(const std::vector<int64_t>& dims) {
  switch (dims.size()) {
    case 0:
      return Shape{};
    case 1:
      return Shape{dims[0]};
    case 2:
      return Shape{dims[0], dims[1]};
    case 3:
      return Shape{dims[0], dims[1], dims[2]};
    default:
      return Shape{dims[0], dims[1], dims[2], dims[3]};
  }
}

absl::StatusOr<Shape> ParseShape(const std::string& path, const std::string& name,
                                 const nlohmann::json& json) {
  const auto list = json.find("shape");
  if (list == json.end() || !list->is_array()) return Damaged(path, name, "shape is not a list");
  if (list->size() > Shape::kMaxRank) {
    return Damaged(path, name, absl::StrCat("rank is ", list->size(), ", at most 4 is supported"));
  }
  std::vector<int64_t> dims;
  int64_t elements = 1;
  for (const nlohmann::json& dim : *list) {
    if (!dim.is_number_unsigned() || dim.get<uint64_t>() > INT64_MAX) {
      return Damaged(path, name, "shape holds something else than non-negative integers");
    }
    dims.push_back(static_cast<int64_t>(dim.get<uint64_t>()));
    if (__builtin_mul_overflow(elements, dims.back(), &elements) || elements > INT64_MAX / 8) {
      return Damaged(path, name, "shape has more elements than any file can hold");
    }
  }
  return MakeShape(dims);
}

absl::StatusOr<Entry> ParseEntry(const std::string& path, const std::string& name,
                                 const nlohmann::json& json, uint64_t data_bytes) {
  if (!json.is_object()) return Damaged(path, name, "its header entry is not an object");
  const auto dtype_name = json.find("dtype");
  if (dtype_name == json.end() || !dtype_name->is_string()) {
    return Damaged(path, name, "dtype is not a string");
  }
  const std::optional<DType> dtype = ParseDType(dtype_name->get_ref<const std::string&>());
  if (!dtype) {
    return Damaged(path, name,
                   absl::StrCat("dtype ", Quoted(dtype_name->get_ref<const std::string&>()),
                                " is not supported; known: F32, BF16, F16, I32, U32"));
  }
  absl::StatusOr<Shape> shape = ParseShape(path, name, json);
  if (!shape.ok()) return shape.status();
  const auto offsets = json.find("data_offsets");
  if (offsets == json.end() || !offsets->is_array() || offsets->size() != 2 ||
      !(*offsets)[0].is_number_unsigned() || !(*offsets)[1].is_number_unsigned()) {
    return Damaged(path, name, "data_offsets are not two non-negative integers");
  }
  const Entry entry{.name = name,
                    .dtype = *dtype,
                    .shape = *shape,
                    .begin = (*offsets)[0].get<uint64_t>(),
                    .end = (*offsets)[1].get<uint64_t>()};
  if (entry.begin > entry.end) return Damaged(path, name, "data_offsets run backwards");
  if (entry.end > data_bytes) {
    return Damaged(path, name,
                   absl::StrCat("ends at byte ", entry.end, " of the data, but the file holds ",
                                data_bytes, ": truncated?"));
  }
  const uint64_t expected = static_cast<uint64_t>(shape->elements()) * DTypeBytes(*dtype);
  if (entry.end - entry.begin != expected) {
    return Damaged(path, name,
                   absl::StrCat("expected ", expected, " bytes for ", DTypeName(*dtype),
                                shape->ToString(), ", got ", entry.end - entry.begin));
  }
  return entry;
}

bool IsTextMap(const nlohmann::json& json) {
  return json.is_object() && std::all_of(json.begin(), json.end(),
                                         [](const nlohmann::json& v) { return v.is_string(); });
}

// Tensors in the order of their data, which they must fill end to end.
absl::StatusOr<std::vector<Entry>> ParseHeader(const std::string& path, std::string_view text,
                                               uint64_t data_bytes) {
  absl::StatusOr<nlohmann::json> header = ParseJsonObject(text, absl::StrCat(path, ": header"));
  if (!header.ok()) return header.status();
  std::vector<Entry> entries;
  for (const auto& [name, value] : header->items()) {
    if (name == "__metadata__") {
      if (!IsTextMap(value)) return Damaged(path, "__metadata__ is not a map of strings");
      continue;
    }
    absl::StatusOr<Entry> entry = ParseEntry(path, name, value, data_bytes);
    if (!entry.ok()) return entry.status();
    entries.push_back(*std::move(entry));
  }
  std::sort(entries.begin(), entries.end(), [](const Entry& a, const Entry& b) {
    return a.begin != b.begin ? a.begin < b.begin : a.end < b.end;
  });
  uint64_t filled = 0;
  for (const Entry& entry : entries) {
    if (entry.begin < filled) return Damaged(path, entry.name, "overlaps the tensor before it");
    if (entry.begin > filled) {
      return Damaged(path, entry.name,
                     absl::StrCat("leaves a hole of ", entry.begin - filled, " bytes before it"));
    }
    filled = entry.end;
  }
  if (filled != data_bytes) {
    return Damaged(
        path, absl::StrCat(data_bytes - filled, " bytes after the last tensor belong to none"));
  }
  return entries;
}

// Closes a file descriptor at the end of its scope.
struct FileDescriptor {
  int fd;
  ~FileDescriptor() {
    if (fd >= 0) close(fd);
  }
};

}  // namespace

void SafetensorsFile::Unmap::operator()(std::byte* p) const { munmap(p, bytes); }

absl::StatusOr<SafetensorsFile> SafetensorsFile::Open(const std::string& path) {
  // Non-blocking, so that a pipe of that name does not hang the start.
  const FileDescriptor file{open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)};
  if (file.fd < 0) {
    const std::string message = absl::StrCat(path, ": ", std::strerror(errno));
    return errno == ENOENT ? absl::NotFoundError(message) : absl::DataLossError(message);
  }
  struct stat info {};
  if (fstat(file.fd, &info) != 0 || !S_ISREG(info.st_mode)) {
    return Damaged(path, "not a regular file");
  }
  const uint64_t file_bytes = static_cast<uint64_t>(info.st_size);
  if (file_bytes < kPrefixBytes) {
    return Damaged(path, absl::StrCat("holds ", file_bytes, " bytes, not even a header's length"));
  }
  void* memory = mmap(nullptr, file_bytes, PROT_READ, MAP_PRIVATE, file.fd, 0);
  if (memory == MAP_FAILED) return Damaged(path, absl::StrCat("mmap: ", std::strerror(errno)));
  SafetensorsFile mapped;
  mapped.map_ = {static_cast<std::byte*>(memory), Unmap{file_bytes}};
  mapped.bytes_ = file_bytes;

  uint64_t header_bytes = 0;
  for (size_t i = 0; i < kPrefixBytes; ++i) {
    header_bytes |= std::to_integer<uint64_t>(mapped.map_.get()[i]) << (8 * i);
  }
  if (header_bytes > std::min(kMaxHeaderBytes, file_bytes - kPrefixBytes)) {
    return Damaged(path, absl::StrCat("header of ", header_bytes, " bytes in a file of ",
                                      file_bytes, "; at most ", kMaxHeaderBytes, " are read"));
  }
  std::byte* data = mapped.map_.get() + kPrefixBytes + header_bytes;
  const std::string_view text(reinterpret_cast<const char*>(mapped.map_.get()) + kPrefixBytes,
                              header_bytes);
  absl::StatusOr<std::vector<Entry>> entries =
      ParseHeader(path, text, file_bytes - kPrefixBytes - header_bytes);
  if (!entries.ok()) return entries.status();
  for (Entry& entry : *entries) {
    if ((kPrefixBytes + header_bytes + entry.begin) % DTypeBytes(entry.dtype) != 0) {
      return Damaged(path, entry.name,
                     absl::StrCat("begins at byte ", kPrefixBytes + header_bytes + entry.begin,
                                  " of the file: not aligned for ", DTypeName(entry.dtype)));
    }
    mapped.tensors_.emplace(std::move(entry.name),
                            TensorView{data + entry.begin, entry.dtype, entry.shape});
  }
  return mapped;
}

namespace {

// tensor -> shard file of an index.
absl::StatusOr<std::map<std::string, std::string>> ReadIndex(const std::string& path) {
  absl::StatusOr<std::string> text = ReadFile(path, kMaxIndexBytes);
  if (!text.ok()) return text.status();
  absl::StatusOr<nlohmann::json> json = ParseJsonObject(*text, path);
  if (!json.ok()) return json.status();
  const auto map = json->find("weight_map");
  if (map == json->end() || !IsTextMap(*map) || map->empty()) {
    return Damaged(path, "weight_map is not a map from tensor names to file names");
  }
  std::map<std::string, std::string> shard_of;
  for (const auto& [tensor, value] : map->items()) {
    const std::string& file = value.get_ref<const std::string&>();
    if (file.empty() || file.front() == '.' ||
        file.find_first_of(std::string_view("/\\\0", 3)) != std::string::npos) {
      return absl::InvalidArgumentError(
          absl::StrCat(path, ": tensor ", Quoted(tensor), ": ", Quoted(file),
                       " is not the name of a file beside the index"));
    }
    shard_of[tensor] = file;
  }
  return shard_of;
}

}  // namespace

absl::StatusOr<Weights> Weights::Open(const std::string& folder) {
  Weights weights;
  const std::string single = absl::StrCat(folder, "/model.safetensors");
  const std::string index = absl::StrCat(single, ".index.json");
  std::error_code error;
  if (std::filesystem::exists(single, error) || !std::filesystem::exists(index, error)) {
    absl::StatusOr<SafetensorsFile> file = SafetensorsFile::Open(single);
    if (!file.ok()) return file.status();
    weights.tensors_ = file->tensors();
    weights.files_.push_back(*std::move(file));
    return weights;
  }
  absl::StatusOr<std::map<std::string, std::string>> shard_of = ReadIndex(index);
  if (!shard_of.ok()) return shard_of.status();
  std::set<std::string> shards;
  for (const auto& [tensor, shard] : *shard_of) shards.insert(shard);
  for (const std::string& shard : shards) {
    const std::string path = absl::StrCat(folder, "/", shard);
    absl::StatusOr<SafetensorsFile> file = SafetensorsFile::Open(path);
    if (!file.ok()) return file.status();
    for (const auto& [name, view] : file->tensors()) {
      const auto listed = shard_of->find(name);
      if (listed == shard_of->end() || listed->second != shard) {
        return Damaged(path, name, absl::StrCat("is not listed for this file by ", index));
      }
      weights.tensors_[name] = view;
    }
    weights.files_.push_back(*std::move(file));
  }
  for (const auto& [tensor, shard] : *shard_of) {
    if (!weights.Has(tensor)) {
      return Damaged(index, tensor, absl::StrCat("is not in ", shard, ", where it is said to be"));
    }
  }
  return weights;
}

bool Weights::Has(std::string_view name) const { return tensors_.contains(name); }

absl::StatusOr<TensorView> Weights::Take(std::string_view name, const Shape& shape) {
  const auto it = tensors_.find(name);
  if (it == tensors_.end()) {
    return absl::NotFoundError(
        absl::StrCat("tensor ", Quoted(name), " is missing; expected ", shape.ToString()));
  }
  const TensorView& view = it->second;
  if (view.shape != shape) {
    return absl::InvalidArgumentError(
        absl::StrCat(it->first, ": expected ", shape.ToString(), ", got ", view.shape.ToString()));
  }
  if (view.dtype != DType::kF32 && view.dtype != DType::kBF16 && view.dtype != DType::kF16) {
    return absl::InvalidArgumentError(
        absl::StrCat(it->first, ": expected F32, BF16 or F16, got ", DTypeName(view.dtype)));
  }
  taken_.insert(it->first);
  return view;
}

absl::Status Weights::CheckAllTaken(bool (*may_stay)(std::string_view name)) const {
  for (const auto& [name, view] : tensors_) {
    if (!taken_.contains(name) && !may_stay(name)) {
      return absl::InvalidArgumentError(
          absl::StrCat("tensor ", Quoted(name), " ", view.shape.ToString(),
                       ": no part of the model that config.json describes uses it"));
    }
  }
  return absl::OkStatus();
}

std::string Weights::Fingerprint() const {
  Sha256 hash;
  for (const auto& [name, view] : tensors_) {
    hash.AddText(name);
    hash.AddText(DTypeName(view.dtype));
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

}  // namespace ovq
