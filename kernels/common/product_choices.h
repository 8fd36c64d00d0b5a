// Which implementation the products of each shape run with, where a device chooses between several
// while a model loads: for the log, the metrics and results of benchmarks.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace ovq {

struct ProductChoice {
  int64_t in, out;
  std::string weights;  // "f32", "bf16", "int8"
  std::string product;  // "cuBLASLt", "oneDNN", "own"
  std::string detail;   // which of the library's: "algorithm 66, tile 20, stages 8"; of own: why
  int count = 1;        // of such products

  std::string ToString() const;
  bool operator==(const ProductChoice&) const = default;
};

// Any thread.
void NoteProduct(const ProductChoice& choice);
std::vector<ProductChoice> ProductChoices();  // of the process so far, in the order of their making

}  // namespace ovq
