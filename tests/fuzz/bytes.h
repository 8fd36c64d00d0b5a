// What the targets of the fuzzer share.
//
// A target is a source fuzz_NAME.cc with LLVMFuzzerTestOneInput. What it promises is a Check; a
// finding is a failed one, a crash, a report of a sanitizer or an input that takes too long. Linked
// to replay.cc it reads the inputs of corpus/NAME, which ctest does; run.sh links it to libFuzzer.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

// What the library keeps for threads that are still there when the program ends.
extern "C" [[gnu::used]] inline const char* __lsan_default_suppressions() {
  return "leak:libcrypto\n";
}

namespace ovq::fuzz {

inline std::string_view Text(const uint8_t* data, size_t size) {
  return {reinterpret_cast<const char*>(data), size};
}

// An input as a series of small decisions; zero once it is used up.
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
  int Upto(int most) { return Byte() % (most + 1); }  // 0 to most, at most 255
  std::string_view ReadBytes(size_t n) {
    const std::string_view taken = left_.substr(0, n);
    left_.remove_prefix(taken.size());
    return taken;
  }
  std::string_view Rest() { return ReadBytes(left_.size()); }
  // Up to the next byte 0, which is dropped.
  std::string_view Word() {
    const std::string_view word = ReadBytes(left_.find('\0'));
    Byte();
    return word;
  }

 private:
  std::string_view left_;
};

}  // namespace ovq::fuzz
