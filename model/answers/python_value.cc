#include "model/answers/python_value.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>
#include <utility>

#include "absl/strings/str_format.h"
#include "base/text.h"
#include "model/answers/marker.h"

namespace ovq::answers {
namespace {

std::optional<uint32_t> Digits(std::string_view text, size_t n, uint32_t base) {
  if (text.size() < n) return std::nullopt;
  uint32_t value = 0;
  for (const char c : text.substr(0, n)) {
    const std::optional<uint32_t> digit = HexDigit(c);
    if (!digit || *digit >= base) return std::nullopt;
    value = value * base + *digit;
  }
  return value;
}

void AddCode(uint32_t code, std::string& json) {
  if (code < 0x10000) {
    absl::StrAppendFormat(&json, "\\u%04x", code);
  } else {
    absl::StrAppendFormat(&json, "\\u%04x\\u%04x", 0xd7c0 + (code >> 10), 0xdc00 + (code & 0x3ff));
  }
}

// A character of a text that no backslash precedes.
void AddPlain(char c, std::string& json) {
  if (static_cast<unsigned char>(c) < 0x20) return AddCode(static_cast<unsigned char>(c), json);
  if (c == '"' || c == '\\') json += '\\';
  json += c;
}

// Adds the escape that begins the text, behind its backslash, and returns its length.
size_t AddEscape(std::string_view text, std::string& json) {
  constexpr std::pair<char, uint32_t> kControls[] = {{'a', 0x7}, {'v', 0xb}};
  constexpr std::pair<char, size_t> kCodes[] = {{'x', 2}, {'u', 4}, {'U', 8}};
  const char c = text.front();
  for (const auto& [letter, code] : kControls) {
    if (c != letter) continue;
    AddCode(code, json);
    return 1;
  }
  for (const auto& [letter, n_digits] : kCodes) {
    const std::optional<uint32_t> code = Digits(text.substr(1), n_digits, 16);
    if (c != letter || !code || *code > 0x10ffff) continue;
    AddCode(*code, json);
    return 1 + n_digits;
  }
  for (size_t n_digits = 3; n_digits > 0; --n_digits) {
    const std::optional<uint32_t> code = Digits(text, n_digits, 8);
    if (!code) continue;
    AddCode(*code, json);
    return n_digits;
  }
  if (c == '\n') return 1;  // the text goes on in the next line
  if (c == '\'') {
    json += c;
  } else if (std::string_view("\"\\bfnrt").find(c) != std::string_view::npos) {
    json += {'\\', c};
  } else {  // Python keeps the backslash of an escape that it does not know.
    AddPlain('\\', json);
    AddPlain(c, json);
  }
  return 1;
}

// A bracket that closes a list, a tuple or a dict; a comma may stand before it.
void Close(char c, std::string& json) {
  size_t end = json.size();
  while (end > 0 && IsSpace(json[end - 1])) --end;
  if (end > 0 && json[end - 1] == ',') json.resize(end - 1);
  json += c == ')' ? ']' : c;
}

}  // namespace

std::string FromPython(const std::string& text) {
  using Json = nlohmann::json;
  if (Json::accept(text)) return text;
  std::string json;
  char quote = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (quote != 0) {
      if (c == '\\' && i + 1 < text.size()) {
        i += AddEscape(std::string_view(text).substr(i + 1), json);
      } else if (c == quote) {
        json += '"';
        quote = 0;
      } else {
        AddPlain(c, json);
      }
    } else if (c == '"' || c == '\'') {
      quote = c;
      json += '"';
    } else if (c == ')' || c == ']' || c == '}') {
      Close(c, json);
    } else {
      constexpr std::pair<std::string_view, std::string_view> kWords[] = {
          {"True", "true"}, {"False", "false"}, {"None", "null"}};
      const auto* word = std::ranges::find_if(kWords, [&](const auto& pair) {
        return std::string_view(text).substr(i).starts_with(pair.first);
      });
      if (word == std::end(kWords)) {
        json += c == '(' ? '[' : c;
      } else {
        json += word->second;
        i += word->first.size() - 1;
      }
    }
  }
  if (Json::accept(json)) return json;
  return Json(text).dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace ovq::answers
