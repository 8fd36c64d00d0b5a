// Mutations of session files, as an attacker makes them who can compute checksums.
#pragma once

#include <cstdint>
#include <random>
#include <string>

#include "model/state_layout.h"
#include "server/engine/common/session_image.h"

namespace ovq::fuzz {

class Random {
 public:
  explicit Random(uint64_t seed) : engine_(seed) {}
  // Uniform in 0 .. most.
  int64_t Upto(int64_t most) { return std::uniform_int_distribution<int64_t>(0, most)(engine_); }
  bool OneIn(int64_t n) { return Upto(n - 1) == 0; }
  template <class List>
  auto Any(const List& list) {
    return *(list.begin() + Upto(static_cast<int64_t>(list.size()) - 1));
  }

 private:
  std::mt19937_64 engine_;
};

// Changes numbers of the layers, bytes of the state or fields of the head; sometimes so that the
// reader already refuses the file.
void MutateImage(const model::StateLayout& layout, int64_t vocab_size, Random& random,
                 engine::SessionImage& image);

// Changes bytes of a file, and corrects the checksums or not.
void MutateFile(Random& random, std::string& file);

// Corrects the checksums of all sections.
void Seal(std::string& file);

}  // namespace ovq::fuzz
