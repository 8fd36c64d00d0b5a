#include "model/safetensors.h"

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/problems.h"
#include "base/status_macros.h"
#include "base/text.h"

namespace ovq::model {
namespace {

constexpr size_t kPrefixBytes = 8;  // the header's length, little-endian
constexpr uint64_t kMaxHeaderBytes = 100'000'000;

// An entry of the header: where a tensor lies in the data section.
struct Entry {
  std::string name;
  kernels::DType dtype;
  kernels::Shape shape;
  uint64_t begin;
  uint64_t end;
};

std::optional<kernels::DType> ParseDType(std::string_view name) {
  for (kernels::DType dtype : {kernels::DType::kF32, kernels::DType::kBF16, kernels::DType::kF16,
                               kernels::DType::kI32, kernels::DType::kU32}) {
    if (name == kernels::DTypeName(dtype)) return dtype;
  }
  return std::nullopt;
}

kernels::Shape MakeShape(const std::vector<int64_t>& dims) {
  switch (dims.size()) {
    case 0:
      return kernels::Shape{};
    case 1:
      return kernels::Shape{dims[0]};
    case 2:
      return kernels::Shape{dims[0], dims[1]};
    case 3:
      return kernels::Shape{dims[0], dims[1], dims[2]};
    default:
      return kernels::Shape{dims[0], dims[1], dims[2], dims[3]};
  }
}

absl::StatusOr<kernels::Shape> ParseShape(const std::string& path, const std::string& name,
                                          const nlohmann::json& json) {
  const auto list = json.find("shape");
  if (list == json.end() || !list->is_array()) return Damaged(path, name, "shape is not a list");
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
  while (dims.size() > kernels::Shape::kMaxRank) {
    const int64_t last = dims.back();
    dims.pop_back();
    dims.back() = elements == 0 ? 0 : dims.back() * last;
  }
  return MakeShape(dims);
}

absl::StatusOr<Entry> ParseEntry(const std::string& path, const std::string& name,
                                 const nlohmann::json& json, uint64_t data_begin,
                                 uint64_t data_bytes) {
  if (!json.is_object()) return Damaged(path, name, "its header entry is not an object");
  const auto dtype_name = json.find("dtype");
  if (dtype_name == json.end() || !dtype_name->is_string()) {
    return Damaged(path, name, "dtype is not a string");
  }
  const std::optional<kernels::DType> dtype = ParseDType(dtype_name->get_ref<const std::string&>());
  if (!dtype) {
    return Damaged(path, name,
                   absl::StrCat("dtype ", Quoted(dtype_name->get_ref<const std::string&>()),
                                " is not supported; known: F32, BF16, F16, I32, U32"));
  }
  ASSIGN_OR_RETURN(kernels::Shape shape, ParseShape(path, name, json));
  const auto offsets = json.find("data_offsets");
  if (offsets == json.end() || !offsets->is_array() || offsets->size() != 2 ||
      !(*offsets)[0].is_number_unsigned() || !(*offsets)[1].is_number_unsigned()) {
    return Damaged(path, name, "data_offsets are not two non-negative integers");
  }
  const Entry entry{.name = name,
                    .dtype = *dtype,
                    .shape = shape,
                    .begin = (*offsets)[0].get<uint64_t>(),
                    .end = (*offsets)[1].get<uint64_t>()};
  if (entry.begin > entry.end) return Damaged(path, name, "data_offsets run backwards");
  if (entry.end > data_bytes) {
    return Damaged(path, name,
                   absl::StrCat("ends at byte ", entry.end, " of the data, but the file holds ",
                                data_bytes, ": truncated?"));
  }
  const uint64_t expected = static_cast<uint64_t>(shape.elements()) * kernels::DTypeBytes(*dtype);
  if (entry.end - entry.begin != expected) {
    return Damaged(path, name,
                   absl::StrCat("expected ", expected, " bytes for ", kernels::DTypeName(*dtype),
                                shape.ToString(), ", got ", entry.end - entry.begin));
  }
  if ((data_begin + entry.begin) % kernels::DTypeBytes(entry.dtype) != 0) {
    return Damaged(path, name,
                   absl::StrCat("begins at byte ", data_begin + entry.begin,
                                " of the file: not aligned for ", kernels::DTypeName(entry.dtype)));
  }
  return entry;
}

// Checks that tensors fill the data end to end. Holes are not reported if some tensor's place is
// unknown.
absl::Status CheckPlaces(const std::string& path, std::vector<Entry>& entries, uint64_t data_bytes,
                         bool all_known) {
  std::sort(entries.begin(), entries.end(), [](const Entry& a, const Entry& b) {
    return a.begin != b.begin ? a.begin < b.begin : a.end < b.end;
  });
  absl::Status problems;
  uint64_t filled = 0;
  for (const Entry& entry : entries) {
    if (entry.begin < filled) {
      AddProblems(problems, Damaged(path, entry.name, "overlaps the tensor before it"));
    } else if (entry.begin > filled && all_known) {
      AddProblems(problems, Damaged(path, entry.name,
                                    absl::StrCat("leaves a hole of ", entry.begin - filled,
                                                 " bytes before it")));
    }
    filled = std::max(filled, entry.end);
  }
  if (filled != data_bytes && all_known) {
    AddProblems(problems,
                Damaged(path, absl::StrCat(data_bytes - filled,
                                           " bytes after the last tensor belong to none")));
  }
  return problems;
}

// data_begin: offset of the data section in the file.
absl::Status ParseHeader(const std::string& path, std::string_view text, uint64_t data_begin,
                         uint64_t data_bytes, std::vector<Entry>& entries,
                         DamagedTensors& damaged) {
  ASSIGN_OR_RETURN(nlohmann::json header, ParseJsonObject(text, absl::StrCat(path, ": header")));
  absl::Status problems;
  for (const auto& [name, value] : header.items()) {
    if (name == "__metadata__") {
      if (IsTextMap(value)) continue;
      AddProblems(problems, Damaged(path, "__metadata__ is not a map of strings"));
      continue;
    }
    absl::StatusOr<Entry> entry = ParseEntry(path, name, value, data_begin, data_bytes);
    AddProblems(problems, entry.status());
    if (entry.ok()) {
      entries.push_back(*std::move(entry));
    } else {
      damaged.emplace(name, entry.status());
    }
  }
  AddProblems(problems, CheckPlaces(path, entries, data_bytes, damaged.empty()));
  return problems;
}

}  // namespace

absl::Status Damaged(const std::string& path, std::string_view what) {
  return absl::DataLossError(absl::StrCat(path, ": ", std::string(what)));
}

absl::Status Damaged(const std::string& path, std::string_view tensor, std::string_view what) {
  return Damaged(path, absl::StrCat("tensor ", Quoted(tensor), ": ", std::string(what)));
}

bool IsTextMap(const nlohmann::json& json) {
  return json.is_object() && std::all_of(json.begin(), json.end(),
                                         [](const nlohmann::json& v) { return v.is_string(); });
}

absl::StatusOr<SafetensorsFile> SafetensorsFile::Open(const std::string& path) {
  SafetensorsFile file;
  const absl::Status status = Open(path, file);
  if (!status.ok()) return status;
  return file;
}

absl::Status SafetensorsFile::Open(const std::string& path, SafetensorsFile& mapped) {
  ASSIGN_OR_RETURN(MappedFile file, MappedFile::Open(path));
  mapped.map_ = std::move(file);
  const uint64_t file_bytes = mapped.map_.size();
  if (file_bytes < kPrefixBytes) {
    return Damaged(path, absl::StrCat("holds ", file_bytes, " bytes, not even a header's length"));
  }
  uint64_t header_bytes = 0;
  for (size_t i = 0; i < kPrefixBytes; ++i) {
    header_bytes |= std::to_integer<uint64_t>(mapped.map_.data()[i]) << (8 * i);
  }
  if (header_bytes > std::min(kMaxHeaderBytes, file_bytes - kPrefixBytes)) {
    return Damaged(path, absl::StrCat("header of ", header_bytes, " bytes in a file of ",
                                      file_bytes, "; at most ", kMaxHeaderBytes, " are read"));
  }
  const uint64_t data_begin = kPrefixBytes + header_bytes;
  const std::string_view text(reinterpret_cast<const char*>(mapped.map_.data()) + kPrefixBytes,
                              header_bytes);
  std::vector<Entry> entries;
  const absl::Status status =
      ParseHeader(path, text, data_begin, file_bytes - data_begin, entries, mapped.damaged_);
  for (Entry& entry : entries) {
    std::byte* data = mapped.map_.data() + data_begin + entry.begin;
    mapped.tensors_.emplace(std::move(entry.name),
                            kernels::TensorView{data, entry.dtype, entry.shape});
  }
  return status;
}

}  // namespace ovq::model
