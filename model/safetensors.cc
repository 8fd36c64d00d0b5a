#include "model/safetensors.h"

#include <algorithm>
#include <cstring>
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
  std::string dtype;
  kernels::Shape shape;
  uint64_t begin;
  uint64_t end;
};

// Bits of an element, for each dtype that the format defines; 0 for others.
int ElementBits(std::string_view dtype) {
  struct Bits {
    int bits;
    std::initializer_list<std::string_view> dtypes;
  };
  static const Bits kBits[] = {
      {4, {"F4"}},
      {6, {"F6_E2M3", "F6_E3M2"}},
      {8, {"BOOL", "U8", "I8", "F8_E4M3", "F8_E5M2", "F8_E8M0", "F8_E4M3FNUZ", "F8_E5M2FNUZ"}},
      {16, {"F16", "BF16", "I16", "U16"}},
      {32, {"F32", "I32", "U32"}},
      {64, {"F64", "I64", "U64", "C64"}}};
  for (const Bits& row : kBits) {
    if (std::ranges::find(row.dtypes, dtype) != row.dtypes.end()) return row.bits;
  }
  return 0;
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

// Errors of a tensor, to which the caller adds its name.
absl::Status Wrong(const auto&... what) { return absl::DataLossError(absl::StrCat(what...)); }

absl::StatusOr<kernels::Shape> ParseShape(const nlohmann::json& list) {
  if (!list.is_array()) return Wrong("shape is not a list");
  std::vector<int64_t> dims;
  int64_t elements = 1;
  for (const nlohmann::json& dim : list) {
    if (!dim.is_number_unsigned() || dim.get<uint64_t>() > INT64_MAX) {
      return Wrong("shape holds something else than non-negative integers");
    }
    dims.push_back(dim.get<int64_t>());
    if (__builtin_mul_overflow(elements, dims.back(), &elements) || elements > INT64_MAX / 64) {
      return Wrong("shape has more elements than any file can hold");
    }
  }
  while (dims.size() > kernels::Shape::kMaxRank) {
    const int64_t last = dims.back();
    dims.pop_back();
    dims.back() = elements == 0 ? 0 : dims.back() * last;
  }
  return MakeShape(dims);
}

absl::StatusOr<Entry> ParseEntry(const std::string& name, const nlohmann::json& json,
                                 uint64_t data_bytes) {
  using Json = nlohmann::json;
  if (!json.is_object()) return Wrong("its header entry is not an object");
  const Json type = json.value("dtype", Json()), offsets = json.value("data_offsets", Json());
  if (!type.is_string()) return Wrong("dtype is not a string");
  const auto& dtype = type.get_ref<const std::string&>();
  if (!IsName(dtype)) return Wrong("dtype ", Quoted(dtype), " is not a name");
  ASSIGN_OR_RETURN(const kernels::Shape shape, ParseShape(json.value("shape", Json())));
  if (!offsets.is_array() || offsets.size() != 2 ||
      !std::ranges::all_of(offsets, &Json::is_number_unsigned)) {
    return Wrong("data_offsets are not two non-negative integers");
  }
  const auto begin = offsets[0].get<uint64_t>(), end = offsets[1].get<uint64_t>();
  if (begin > end) return Wrong("data_offsets run backwards");
  if (end > data_bytes) {
    return Wrong("ends at byte ", end, " of the data, but the file holds ", data_bytes,
                 ": truncated?");
  }
  const int element = ElementBits(dtype);
  const uint64_t bits = static_cast<uint64_t>(shape.elements()) * element, expected = bits / 8;
  if (element != 0 && (bits % 8 != 0 || end - begin != expected)) {
    return Wrong("expected ", bits % 8 == 0 ? absl::StrCat(expected, " bytes") : "whole bytes",
                 " for ", dtype, shape.ToString(), ", got ", end - begin);
  }
  return Entry{name, dtype, shape, begin, end};
}

// Checks that tensors fill the data end to end. Holes are not reported if some tensor's place is
// unknown.
absl::Status CheckPlaces(const std::string& path, std::vector<Entry>& entries, uint64_t data_bytes,
                         bool all_known) {
  std::ranges::sort(entries, {}, [](const Entry& e) { return std::pair(e.begin, e.end); });
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

}  // namespace

absl::Status Damaged(const std::string& path, absl::string_view what) {
  return absl::DataLossError(absl::StrCat(path, ": ", what));
}

absl::Status Damaged(const std::string& path, std::string_view tensor, absl::string_view what) {
  return Damaged(path, absl::StrCat("tensor ", Quoted(tensor), ": ", what));
}

std::optional<kernels::DType> FloatDType(std::string_view name) {
  for (kernels::DType dtype : {kernels::DType::kF32, kernels::DType::kBF16, kernels::DType::kF16}) {
    if (name == kernels::DTypeName(dtype)) return dtype;
  }
  return std::nullopt;
}

bool IsTextMap(const nlohmann::json& json) {
  return json.is_object() && std::ranges::all_of(json, &nlohmann::json::is_string);
}

absl::Status SafetensorsFile::Open(const std::string& path, SafetensorsFile& mapped) {
  ASSIGN_OR_RETURN(MappedFile file, MappedFile::Open(path));
  mapped.map_ = std::move(file);
  const uint64_t file_bytes = mapped.map_.size();
  if (file_bytes < kPrefixBytes) {
    return Damaged(path, absl::StrCat("holds ", file_bytes, " bytes, not even a header's length"));
  }
  uint64_t header_bytes = 0;
  std::memcpy(&header_bytes, mapped.map_.data(), kPrefixBytes);
  if (header_bytes > std::min(kMaxHeaderBytes, file_bytes - kPrefixBytes)) {
    return Damaged(path, absl::StrCat("expected safetensors, got a header of ", header_bytes,
                                      " bytes in a file of ", file_bytes, "; at most ",
                                      kMaxHeaderBytes, " are read"));
  }
  const uint64_t data_begin = kPrefixBytes + header_bytes;
  const std::string_view text(reinterpret_cast<const char*>(mapped.map_.data()) + kPrefixBytes,
                              header_bytes);
  ASSIGN_OR_RETURN(const nlohmann::json header, ParseJsonObject(text, path + ": header"));
  absl::Status problems;
  std::vector<Entry> entries;
  for (const auto& [name, value] : header.items()) {
    if (name == "__metadata__") {
      if (!value.is_null() && !IsTextMap(value)) {
        AddProblems(problems, Damaged(path, "__metadata__ is neither a map of strings nor null"));
      }
      continue;
    }
    absl::StatusOr<Entry> entry = ParseEntry(name, value, file_bytes - data_begin);
    if (entry.ok()) {
      entries.push_back(*std::move(entry));
    } else {
      const absl::Status damage = Damaged(path, name, entry.status().message());
      AddProblems(problems, mapped.damaged_.emplace(name, damage).first->second);
    }
  }
  AddProblems(problems,
              CheckPlaces(path, entries, file_bytes - data_begin, mapped.damaged_.empty()));
  for (Entry& entry : entries) {
    const std::span<const std::byte> bytes(mapped.map_.data() + data_begin + entry.begin,
                                           entry.end - entry.begin);
    mapped.tensors_.emplace(std::move(entry.name),
                            StoredTensor{std::move(entry.dtype), entry.shape, bytes});
  }
  return problems;
}

}  // namespace ovq::model
