// Session files as somebody makes them who can compute a checksum.
#pragma once

#include <cstdint>
#include <random>
#include <string>

#include "model/state_layout.h"
#include "server/engine/session_image.h"

namespace ovq::fuzz {

class Random {
 public:
  explicit Random(uint64_t seed) : engine_(seed) {}
  // 0 to most.
  int64_t Upto(int64_t most) { return std::uniform_int_distribution<int64_t>(0, most)(engine_); }
  bool OneIn(int64_t n) { return Upto(n - 1) == 0; }
  template <class List>
  auto Any(const List& list) {
    return *(list.begin() + Upto(static_cast<int64_t>(list.size()) - 1));
  }

 private:
  std::mt19937_64 engine_;
};

// The layers' numbers, the state's bytes, what the head says; now and then so that the reader
// already refuses it.
void MutateImage(const StateLayout& layout, int64_t vocab_size, Random& random,
                 SessionImage& image);

// The bytes of a file, with the checksums that are now right, or not.
void MutateFile(Random& random, std::string& file);

}  // namespace ovq::fuzz
