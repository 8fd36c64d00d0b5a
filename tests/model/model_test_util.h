// Temporary folders and weight files for the tests of model/.
#pragma once

#include <unistd.h>

#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "base/check.h"
#include "model/safetensors.h"

namespace ovq::model::test {

// An empty folder, removed by the destructor.
class TempFolder {
 public:
  TempFolder() {
    std::string pattern = (std::filesystem::temp_directory_path() / "ovq-test-XXXXXX").string();
    Check(mkdtemp(pattern.data()) != nullptr, "a temporary folder");
    path_ = pattern;
  }
  ~TempFolder() { std::filesystem::remove_all(path_); }
  TempFolder(const TempFolder&) = delete;
  TempFolder& operator=(const TempFolder&) = delete;

  const std::string& path() const { return path_; }
  std::string file(std::string_view name) const { return path_ + "/" + std::string(name); }
  void Write(std::string_view name, std::string_view text) const {
    std::ofstream(file(name), std::ios::binary) << text;
  }

 private:
  std::string path_;
};

inline std::string ReadBytes(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return std::string(std::istreambuf_iterator<char>(file), {});
}

// The bytes of a safetensors file, valid or not.
inline std::string SafetensorsBytes(std::string_view header, std::string_view data) {
  std::string bytes(8, '\0');
  for (int i = 0; i < 8; ++i) bytes[i] = static_cast<char>(uint64_t{header.size()} >> (8 * i));
  return bytes.append(header).append(data);
}

inline absl::StatusOr<SafetensorsFile> OpenSafetensors(const std::string& path) {
  SafetensorsFile file;
  const absl::Status status = SafetensorsFile::Open(path, file);
  if (!status.ok()) return status;
  return file;
}

inline std::string Text(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

// A tensor of floats as a view. The file must have it aligned.
inline kernels::TensorView View(const SafetensorsFile& file, const std::string& name) {
  const StoredTensor& stored = file.tensors().at(name);
  return {const_cast<std::byte*>(stored.bytes.data()), FloatDType(stored.dtype).value(),
          stored.shape};
}

inline std::string Message(const absl::Status& status) { return std::string(status.message()); }

}  // namespace ovq::model::test
