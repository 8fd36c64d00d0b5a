#include "base/sha256.h"

#include <openssl/evp.h>

#include <cstdint>

#include "absl/strings/escaping.h"
#include "base/check.h"

namespace ovq {

struct Sha256::Context {
  EVP_MD_CTX* md = EVP_MD_CTX_new();
  ~Context() { EVP_MD_CTX_free(md); }
};

Sha256::Sha256() : context_(std::make_unique<Context>()) {
  Check(EVP_DigestInit_ex(context_->md, EVP_sha256(), nullptr) == 1, "SHA-256 is available");
}
Sha256::~Sha256() = default;

void Sha256::Add(const void* data, size_t bytes) {
  Check(EVP_DigestUpdate(context_->md, data, bytes) == 1, "SHA-256 update");
}

void Sha256::AddText(std::string_view text) {
  const uint64_t size = text.size();
  Add(&size, sizeof(size));
  Add(text.data(), text.size());
}

std::string Sha256::Hex() {
  std::string digest(EVP_MAX_MD_SIZE, '\0');
  unsigned bytes = 0;
  Check(EVP_DigestFinal_ex(context_->md, reinterpret_cast<unsigned char*>(digest.data()), &bytes),
        "SHA-256 end");
  digest.resize(bytes);
  return absl::BytesToHexString(digest);
}

}  // namespace ovq
