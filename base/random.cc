#include "base/random.h"

#include <sys/random.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <iterator>

#include "base/check.h"
#include "base/sha256.h"

namespace ovq {

std::string UnguessableHex() {
  static const auto key = [] {
    std::array<std::byte, 32> bytes;
    Check(getrandom(bytes.data(), bytes.size(), 0) == std::ssize(bytes),
          "the system gives random bits");
    return bytes;
  }();
  static std::atomic<uint64_t> count = 0;
  const uint64_t mine = ++count;
  Sha256 digest;
  digest.Add(key.data(), key.size());
  digest.Add(&mine, sizeof(mine));
  return digest.Hex().substr(0, 32);
}

}  // namespace ovq
