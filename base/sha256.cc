#include "base/sha256.h"

#include <openssl/evp.h>

#include <cstdint>

#include "absl/strings/escaping.h"
#include "base/check.h"

namespace ovq {

Sha256::Sha256() : context_(EVP_MD_CTX_new(), EVP_MD_CTX_free) {
  Check(EVP_DigestInit_ex(context_.get(), EVP_sha256(), nullptr) == 1, "SHA-256 is available");
}

void Sha256::Add(const void* data, size_t bytes) {
  Check(EVP_DigestUpdate(context_.get(), data, bytes) == 1, "SHA-256 update");
}

void Sha256::AddText(std::string_view text) {
  const uint64_t size = text.size();
  Add(&size, sizeof(size));
  Add(text.data(), text.size());
}

std::string Sha256::Hex() {
  std::string digest(EVP_MAX_MD_SIZE, '\0');
  unsigned bytes = 0;
  Check(EVP_DigestFinal_ex(context_.get(), reinterpret_cast<unsigned char*>(digest.data()), &bytes),
        "SHA-256 end");
  digest.resize(bytes);
  return absl::BytesToHexString(digest);
}

}  // namespace ovq
