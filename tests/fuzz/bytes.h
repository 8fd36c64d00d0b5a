// Shared by the fuzz targets.
//
// A target is a source fuzz_NAME.cc with LLVMFuzzerTestOneInput. Checks state its promises; a
// finding is a failed check, a crash, a sanitizer report or an input that takes too long. Linked
// with replay.cc, a target runs the inputs of corpus/NAME, which ctest does; run.sh links it with
// libFuzzer.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

// Ignores libcrypto's allocations for threads that still exist when the program ends.
extern "C" [[gnu::used]] inline const char* __lsan_default_suppressions() {
  return "leak:libcrypto\n";
}

namespace ovq::fuzz {

inline std::string_view Text(const uint8_t* data, size_t size) {
  return {reinterpret_cast<const char*>(data), size};
}

// Reads an input as a series of small decisions; all zeros after its end.
class Bytes {
 public:
  Bytes(const uint8_t* data, size_t size) : left_(Text(data, size)) {}

  bool empty() const { return left_.empty(); }
  int Byte() {
    if (left_.empty()) return 0;
    const auto byte = static_cast<uint8_t>(left_.front());
    left_.remove_prefix(1);
    return byte;
  }
  int Upto(int most) { return Byte() % (most + 1); }  // 0 to most; most is at most 255
  std::string_view ReadBytes(size_t n) {
    const std::string_view taken = left_.substr(0, n);
    left_.remove_prefix(taken.size());
    return taken;
  }
  std::string_view Rest() { return ReadBytes(left_.size()); }
  // Bytes up to the next byte 0, which is dropped.
  std::string_view Word() {
    const std::string_view word = ReadBytes(left_.find('\0'));
    Byte();
    return word;
  }

 private:
  std::string_view left_;
};

}  // namespace ovq::fuzz
