// BlockType: how GGUF files store the elements of tensors, one by one or in blocks of integers with
// scales.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace ovq::model {

struct BlockType {
  uint32_t id;            // in files
  std::string_view name;  // ggml's, "Q4_K"
  int64_t elements;       // in a block; a row holds whole blocks
  size_t bytes;           // of a block
  // Writes the elements of a block as float32, to the bit as ggml's reference code does.
  void (*decode)(const std::byte* block, float* elements_out);

  bool is_float() const { return elements == 1; }  // F32, F16 or BF16
};

std::span<const BlockType> BlockTypes();
const BlockType* FindBlockType(uint32_t id);  // null for types that are not served

}  // namespace ovq::model
