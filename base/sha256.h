// SHA-256, for fingerprints.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

namespace ovq {

class Sha256 {
 public:
  Sha256();
  ~Sha256();
  void Add(const void* data, size_t bytes);
  // With its length first, so that two texts never run into one another.
  void AddText(std::string_view text);
  std::string Hex();  // ends the digest: call once

 private:
  struct Context;
  std::unique_ptr<Context> context_;
};

}  // namespace ovq
