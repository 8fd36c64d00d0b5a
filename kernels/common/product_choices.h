// The implementation chosen for the matrix products of each shape while a model loads, on devices
// that have several. Read by the log, the metrics and the benchmarks' results.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace ovq::kernels {

struct ProductChoice {
  int64_t in, out;
  std::string weights;  // "f32", "bf16", "int8"
  std::string product;  // "cuBLASLt", "oneDNN", "own"
  std::string detail;   // the library's algorithms ("to 16 rows algorithm 66, tile 20, stages 8; to
                        // 64 rows ..."), or the reason for "own"
  int count = 1;        // number of products with this choice

  std::string ToString() const;
  bool operator==(const ProductChoice&) const = default;
};

// Records a choice. Any thread.
void NoteProduct(ProductChoice choice);
std::vector<ProductChoice> ProductChoices();  // all choices of the process, oldest first

}  // namespace ovq::kernels
