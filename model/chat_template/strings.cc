#include "model/chat_template/strings.h"

#include <string.h>

#include <algorithm>

#include "model/tokenizers/chars.h"

namespace ovq::jinja {
namespace {

constexpr size_t kNpos = std::string_view::npos;
using AppendCased = void (*)(char32_t c, std::string& text);

// The character as `append` writes it.
std::string One(char32_t c, AppendCased append = model::AppendChar) {
  std::string text;
  append(c, text);
  return text;
}

std::string All(std::string_view text, AppendCased append) {
  std::string changed;
  for (size_t at = 0; at < text.size();) append(model::NextChar(text, at), changed);
  return changed;
}

template <class IsOfClass>
bool AreAll(std::string_view text, IsOfClass is_of_class) {
  for (size_t at = 0; at < text.size();) {
    if (!is_of_class(model::NextChar(text, at))) return false;
  }
  return !text.empty();
}

bool IsLineEnd(char32_t c) {
  return (c >= 0xa && c <= 0xd) || (c >= 0x1c && c <= 0x1e) || c == 0x85 || c == 0x2028 ||
         c == 0x2029;
}

bool IsDigitChar(char32_t c) {
  return model::IsDecimal(c) || c == 0xb2 || c == 0xb3 || c == 0xb9 || c == 0x2070 ||
         (c >= 0x2074 && c <= 0x2079) || (c >= 0x2080 && c <= 0x2089);
}

// Whether `same` changes no character and `other` some.
bool HasCase(std::string_view text, AppendCased same, AppendCased other) {
  return All(text, same) == text && All(text, other) != text;
}

}  // namespace

bool IsSpace(char32_t c) { return model::IsWhitespace(c) || (c >= 0x1c && c <= 0x1f); }

std::string_view StripSpace(std::string_view text, bool left, bool right) {
  return model::Strip(text, left, right, IsSpace);
}

std::string_view StripChars(std::string_view text, std::string_view chars, bool left, bool right) {
  return model::Strip(text, left, right, [&](char32_t c) { return chars.find(One(c)) != kNpos; });
}

std::string Upper(std::string_view text) { return All(text, model::AppendUpper); }
std::string Lower(std::string_view text) { return All(text, model::AppendLower); }

std::string Title(std::string_view text) {
  std::string title;
  bool in_word = false;
  for (size_t at = 0; at < text.size();) {
    const char32_t c = model::NextChar(text, at);
    (in_word ? model::AppendLower : model::AppendTitle)(c, title);
    in_word = One(c, model::AppendUpper) != One(c) || One(c, model::AppendLower) != One(c);
  }
  return title;
}

std::string Capitalize(std::string_view text) {
  const size_t first = PrefixBytes(text, 1);
  return All(text.substr(0, first), model::AppendTitle) + Lower(text.substr(first));
}

size_t PrefixBytes(std::string_view text, int64_t n_chars) {
  size_t at = 0;
  for (; n_chars > 0 && at < text.size(); --n_chars) model::NextChar(text, at);
  return at;
}

std::vector<std::string_view> Chars(std::string_view text) {
  std::vector<std::string_view> chars;
  for (size_t at = 0, begin = 0; at < text.size(); begin = at) {
    model::NextChar(text, at);
    chars.push_back(text.substr(begin, at - begin));
  }
  return chars;
}

size_t FindBytes(std::string_view text, std::string_view what, size_t from) {
  if (from > text.size()) return kNpos;
  // memmem is linear; string_view::find takes time proportional to the product of the sizes.
  const void* found = memmem(text.data() + from, text.size() - from, what.data(), what.size());
  return found == nullptr ? kNpos : static_cast<const char*>(found) - text.data();
}

size_t Count(std::string_view text, std::string_view what) {
  if (what.empty()) return model::CountChars(text) + 1;
  size_t n = 0;
  for (size_t at = 0; (at = FindBytes(text, what, at)) != kNpos; at += what.size()) ++n;
  return n;
}

std::string Replace(std::string_view text, std::string_view what, std::string_view by,
                    size_t max_count) {
  std::string replaced;
  size_t at = 0;
  for (; max_count > 0; --max_count) {
    const size_t found = FindBytes(text, what, at);
    if (found == kNpos) break;
    replaced.append(text, at, found - at).append(by);
    at = found + what.size();
    if (!what.empty()) continue;
    if (at == text.size()) return replaced;
    const size_t size = PrefixBytes(text.substr(at), 1);
    replaced.append(text, at, size);
    at += size;
  }
  return replaced += text.substr(at);
}

std::vector<std::string_view> Split(std::string_view text, std::string_view separator,
                                    size_t max_splits, bool from_right) {
  // From the right, what counts from the left in both texts reversed.
  const auto directed = [&](std::string_view forth) {
    return from_right ? std::string(forth.rbegin(), forth.rend()) : std::string(forth);
  };
  const std::string all = directed(text), cut = directed(separator);
  std::vector<std::string_view> parts;
  size_t begin = 0;
  while (parts.size() <= max_splits) {
    const size_t found = parts.size() == max_splits ? kNpos : FindBytes(all, cut, begin);
    const size_t end = std::min(found, all.size());
    parts.push_back(text.substr(from_right ? text.size() - end : begin, end - begin));
    if (found == kNpos) break;
    begin = end + separator.size();
  }
  if (from_right) std::ranges::reverse(parts);
  return parts;
}

std::vector<std::string_view> SplitSpace(std::string_view text, size_t max_splits,
                                         bool from_right) {
  const std::string_view whole = text;
  std::vector<std::string_view> words;
  while (!(text = StripSpace(text, true, false)).empty()) {
    size_t end = 0;
    for (size_t at = 0; at < text.size() && !IsSpace(model::NextChar(text, at));) end = at;
    words.push_back(text.substr(0, end));
    text = text.substr(end);
  }
  if (words.size() <= max_splits) return words;
  // The rest is one part, with its inner and outer blanks.
  const size_t n_rest = words.size() - max_splits;
  if (from_right) {
    const char* const end = words[n_rest - 1].data() + words[n_rest - 1].size();
    words.erase(words.begin(), words.begin() + n_rest);
    words.insert(words.begin(), whole.substr(0, end - whole.data()));
  } else {
    const size_t begin = words[max_splits].data() - whole.data();
    words.resize(max_splits);
    words.push_back(whole.substr(begin));
  }
  return words;
}

std::vector<std::string_view> SplitLines(std::string_view text, bool keep_ends) {
  std::vector<std::string_view> lines;
  size_t begin = 0;
  for (size_t at = 0; at < text.size();) {
    const size_t end = at;
    const char32_t c = model::NextChar(text, at);
    if (!IsLineEnd(c)) continue;
    if (c == '\r' && at < text.size() && text[at] == '\n') ++at;
    lines.push_back(text.substr(begin, (keep_ends ? at : end) - begin));
    begin = at;
  }
  if (begin < text.size()) lines.push_back(text.substr(begin));
  return lines;
}

bool IsDigits(std::string_view text) { return AreAll(text, IsDigitChar); }
bool IsAlphas(std::string_view text) { return AreAll(text, model::IsLetter); }
bool IsSpaces(std::string_view text) { return AreAll(text, IsSpace); }
bool IsLowerCase(std::string_view text) {
  return HasCase(text, model::AppendLower, model::AppendUpper);
}
bool IsUpperCase(std::string_view text) {
  return HasCase(text, model::AppendUpper, model::AppendLower);
}

}  // namespace ovq::jinja
