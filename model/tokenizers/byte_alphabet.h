// GPT-2's byte alphabet: each byte is written as one printable character, so that a vocabulary of
// byte strings fits a JSON file. 21-7e, a1-ac and ae-ff stand for themselves, the 68 others are
// U+0100 onwards in order: a space is "Ġ", a newline "Ċ".
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace ovq::model {

void AppendByteChar(uint8_t byte, std::string& text);
std::string BytesToChars(std::string_view bytes);
// Empty if the valid UTF-8 has a character outside the alphabet.
std::optional<std::string> CharsToBytes(std::string_view chars);

}  // namespace ovq::model
