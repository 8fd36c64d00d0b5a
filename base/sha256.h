// SHA-256, for fingerprints.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

struct evp_md_ctx_st;

namespace ovq {

class Sha256 {
 public:
  Sha256();
  void Add(const void* data, size_t bytes);
  // Adds the length, then the text, so that two texts never run into one another.
  void AddText(std::string_view text);
  std::string Hex();  // ends the digest: call once

 private:
  std::unique_ptr<evp_md_ctx_st, void (*)(evp_md_ctx_st*)> context_;  // OpenSSL's
};

}  // namespace ovq
