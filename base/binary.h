// Little-endian numbers, texts and checked sections of files. A section is a tag, a length, a
// payload and a CRC-32C of these (docs/session-format.md).
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace ovq {

inline constexpr size_t kSectionStartBytes = 12;  // tag and length
inline constexpr size_t kSectionEndBytes = 4;     // checksum
inline constexpr size_t kMaxTextBytes = 255;

template <class T>
void Put(std::string& out, T value) {
  for (size_t i = 0; i < sizeof(T); ++i) {
    out.push_back(static_cast<char>(static_cast<uint64_t>(value) >> (8 * i)));
  }
}
template <class T>
void PutAll(std::string& out, const std::vector<T>& values) {
  for (const T value : values) Put(out, value);
}
// Appends the length as one byte, then the text: at most kMaxTextBytes.
void PutText(std::string& out, std::string_view text);

// Consumes a number from the front of `in`. The caller has checked that it is long enough.
template <class T>
T Get(std::string_view& in) {
  uint64_t value = 0;
  for (size_t i = 0; i < sizeof(T); ++i) {
    value |= static_cast<uint64_t>(static_cast<uint8_t>(in[i])) << (8 * i);
  }
  in.remove_prefix(sizeof(T));
  return static_cast<T>(value);
}
// Reads the number that is the whole text.
template <class T>
std::vector<T> GetAll(std::string_view in) {
  std::vector<T> values(in.size() / sizeof(T));
  for (T& value : values) value = Get<T>(in);
  return values;
}
// Consumes a text. False, and `in` stays as it is, if the text goes beyond the end.
bool GetText(std::string_view& in, std::string& text);

// The bytes before a section's payload. tag: four letters.
std::string SectionStart(std::string_view tag, uint64_t payload_bytes);
void PutSection(std::string& out, std::string_view tag, std::string_view payload);

}  // namespace ovq
