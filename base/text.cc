#include "base/text.h"

#include <utf8.h>

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"

namespace ovq {
namespace {

// Whether up to three further bytes can complete these to a character. The ranges of second bytes
// by lead byte (Unicode 15, table 3-7) begin at 80 or end at bf.
bool IsUnfinished(std::string_view bytes) {
  if (bytes.size() > 3) return false;
  for (const char* end : {"\x80", "\xbf", "\x80\x80", "\xbf\xbf", "\x80\x80\x80", "\xbf\xbf\xbf"}) {
    if (utf8::is_valid(std::string(bytes) + end)) return true;
  }
  return false;
}

}  // namespace

std::string Quoted(std::string_view name) {
  constexpr size_t kMaxChars = 120;
  std::string text = absl::CEscape(std::string(name.substr(0, kMaxChars)));
  if (name.size() > kMaxChars) text += "...";
  return absl::StrCat("'", text, "'");
}

bool IsName(std::string_view text) {
  return !text.empty() && text.size() <= 64 && std::ranges::all_of(text, [](unsigned char c) {
    return absl::ascii_isalnum(c) || c == '.' || c == '_' || c == '-';
  });
}

std::optional<std::string> PercentDecoded(std::string_view text) {
  std::string decoded;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '%') {
      decoded.push_back(text[i]);
      continue;
    }
    if (i + 2 >= text.size()) return std::nullopt;
    const std::optional<uint32_t> high = HexDigit(text[i + 1]), low = HexDigit(text[i + 2]);
    if (!high || !low) return std::nullopt;
    decoded.push_back(static_cast<char>(*high << 4 | *low));
    i += 2;
  }
  return decoded;
}

std::optional<size_t> FirstInvalidUtf8(std::string_view text) {
  const size_t at = utf8::find_invalid(text);
  return at == std::string_view::npos ? std::nullopt : std::optional(at);
}

std::string ConsumeUtf8(std::string& pending) {
  std::string text;
  std::string_view rest = pending;
  for (;;) {
    const size_t valid = FirstInvalidUtf8(rest).value_or(rest.size());
    text += rest.substr(0, valid);
    rest.remove_prefix(valid);
    if (rest.empty() || IsUnfinished(rest)) break;
    size_t bad = 1;
    while (IsUnfinished(rest.substr(0, bad + 1))) ++bad;
    text += kReplacementCharacter;
    rest.remove_prefix(bad);
  }
  pending.erase(0, pending.size() - rest.size());
  return text;
}

std::string ValidUtf8(std::string text) {
  std::string valid = ConsumeUtf8(text);
  if (!text.empty()) valid += kReplacementCharacter;
  return valid;
}

}  // namespace ovq
