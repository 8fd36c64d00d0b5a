// GgufWriter: the bytes of GGUF files, valid or not.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace ovq::model::test {

// The little-endian bytes of a number.
template <class T>
std::string Raw(T number) {
  return std::string(reinterpret_cast<const char*>(&number), sizeof(number));
}

enum GgufKind : uint32_t {
  kU32 = 4,
  kI32 = 5,
  kF32Kind = 6,
  kBoolKind = 7,
  kTextKind = 8,
  kListKind = 9,
  kU64 = 10
};

struct GgufWriter {
  std::string keys, infos, data;
  uint64_t n_keys = 0, n_tensors = 0;
  uint32_t version = 3;

  static std::string Text(std::string_view text) { return Raw(uint64_t{text.size()}).append(text); }
  // Adds a key with the bytes of its value.
  void Key(std::string_view key, uint32_t kind, std::string_view value) {
    keys += Text(key) + Raw(kind);
    keys += value;
    ++n_keys;
  }
  void Key(std::string_view key, uint32_t number) { Key(key, kU32, Raw(number)); }
  void Key(std::string_view key, std::string_view text) { Key(key, kTextKind, Text(text)); }
  void Key(std::string_view key, const char* text) { Key(key, std::string_view(text)); }
  void Key(std::string_view key, float number) { Key(key, kF32Kind, Raw(number)); }
  void Key(std::string_view key, bool value) { Key(key, kBoolKind, Raw(value)); }
  template <class T>
  void List(std::string_view key, uint32_t kind, const std::vector<T>& values) {
    std::string bytes = Raw(kind) + Raw(uint64_t{values.size()});
    for (const T& value : values) {
      if constexpr (std::is_same_v<T, std::string>) {
        bytes += Text(value);
      } else {
        bytes += Raw(value);
      }
    }
    Key(key, kListKind, bytes);
  }
  // Adds a tensor, its innermost dimension first, behind the others.
  void Tensor(std::string_view name, const std::vector<uint64_t>& dims, uint32_t type,
              std::string_view bytes) {
    Info(name, dims, type, data.size());
    data += bytes;
    data.resize((data.size() + 31) / 32 * 32);
  }
  void Info(std::string_view name, const std::vector<uint64_t>& dims, uint32_t type,
            uint64_t offset) {
    infos += Text(name) + Raw(static_cast<uint32_t>(dims.size()));
    for (const uint64_t dim : dims) infos += Raw(dim);
    infos += Raw(type) + Raw(offset);
    ++n_tensors;
  }
  std::string Bytes() const {
    std::string bytes = "GGUF" + Raw(version) + Raw(n_tensors) + Raw(n_keys) + keys + infos;
    bytes.resize((bytes.size() + 31) / 32 * 32);
    return bytes + data;
  }
};

}  // namespace ovq::model::test
