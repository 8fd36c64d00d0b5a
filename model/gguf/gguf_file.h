// GgufFile: a GGUF file, or the files of a split model, mapped read-only: its metadata and its
// tensors as they are stored.
#pragma once

#include <cstddef>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "base/mapped_file.h"
#include "kernels/common/attrs.h"
#include "kernels/common/tensor.h"
#include "model/gguf/block_types.h"

namespace ovq::model {

struct GgufTensor {
  const BlockType* type = nullptr;
  kernels::Shape shape;  // the outermost dimension first; GGUF has the reverse
  std::span<const std::byte> bytes;
};
using GgufTensors = std::map<std::string, GgufTensor, std::less<>>;

// Versions 2 and 3, little-endian. Open checks that metadata have at most 100 MB, that all texts
// are UTF-8, that no key and no tensor is given twice, that types are known and rows hold whole
// blocks, and that tensors lie in the file, aligned, without overlaps. Errors name the file and the
// key or tensor: DataLoss, Unimplemented for what GGUF knows and this does not.
//
// A model split into n files is NAME-00001-of-0000n.gguf, which Open is given, and its other parts
// beside it. Each is checked like a file alone; InvalidArgument if a part is another one than its
// name says (split.no, split.count, split.tensors.count), or if path is not the first.
class GgufFile {
 public:
  static absl::Status Open(const std::string& path, GgufFile& file);

  // By key, of the first part. Lists of booleans are lists of integers; lists of lists are left
  // out.
  const kernels::Attrs& metadata() const { return metadata_; }
  const GgufTensors& tensors() const { return tensors_; }
  // The name, without its folder, of the part that holds a tensor's bytes.
  const std::string& PartThatHolds(std::span<const std::byte> bytes) const;
  // Call this after reading the tensors: DataLoss if a file changed meanwhile (MappedFile).
  absl::Status CheckWhole() const;

 private:
  // Adds a file and its tensors.
  absl::Status OpenPart(const std::string& path, kernels::Attrs& metadata);
  absl::Status OpenOtherParts(const std::string& path);

  struct Part {
    std::string name;  // without folder
    MappedFile map;
  };
  std::vector<Part> parts_;
  kernels::Attrs metadata_;
  GgufTensors tensors_;
};

// Whether a model's path is a GGUF file, not a folder: by its ending, or as it is a file.
bool IsGguf(const std::string& path);
// The name of a GGUF file's model: that of the file without its ending and a part's numbers.
std::string GgufModelName(const std::string& path);

}  // namespace ovq::model
