#include "model/tokenizers/byte_alphabet.h"

#include <array>

#include "model/tokenizers/chars.h"

namespace ovq::model {
namespace {

constexpr char32_t kEnd = 0x144;  // after the last character of the alphabet

struct Alphabet {
  std::array<char32_t, 256> char_of;
  std::array<int16_t, kEnd> byte_of;  // -1: not in the alphabet
};

constexpr Alphabet MakeAlphabet() {
  Alphabet alphabet{};
  for (int16_t& byte : alphabet.byte_of) byte = -1;
  char32_t next = 0x100;
  for (int byte = 0; byte < 256; ++byte) {
    const bool itself =
        (byte >= 0x21 && byte <= 0x7e) || (byte >= 0xa1 && byte <= 0xac) || byte >= 0xae;
    alphabet.char_of[byte] = itself ? static_cast<char32_t>(byte) : next++;
    alphabet.byte_of[alphabet.char_of[byte]] = static_cast<int16_t>(byte);
  }
  return alphabet;
}

constexpr Alphabet kAlphabet = MakeAlphabet();

}  // namespace

void AppendByteChar(uint8_t byte, std::string& text) { AppendChar(kAlphabet.char_of[byte], text); }

std::string BytesToChars(std::string_view bytes) {
  std::string chars;
  chars.reserve(bytes.size() * 2);
  for (char byte : bytes) AppendByteChar(static_cast<uint8_t>(byte), chars);
  return chars;
}

std::optional<std::string> CharsToBytes(std::string_view chars) {
  std::string bytes;
  bytes.reserve(chars.size());
  for (size_t at = 0; at < chars.size();) {
    const char32_t c = NextChar(chars, at);
    if (c >= kEnd || kAlphabet.byte_of[c] < 0) return std::nullopt;
    bytes.push_back(static_cast<char>(kAlphabet.byte_of[c]));
  }
  return bytes;
}

}  // namespace ovq::model
