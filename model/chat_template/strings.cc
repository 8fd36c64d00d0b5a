#include "model/chat_template/strings.h"

#include <string.h>

#include <algorithm>

#include "model/tokenizers/chars.h"

namespace ovq::jinja {
namespace {

constexpr size_t kNpos = std::string_view::npos;

size_t LastCharBegin(std::string_view text) {
  size_t begin = text.size() - 1;
  while (begin > 0 && (text[begin] & 0xc0) == 0x80) --begin;
  return begin;
}

template <class IsStripped>
std::string_view Strip(std::string_view text, bool left, bool right, IsStripped is_stripped) {
  while (left && !text.empty()) {
    size_t at = 0;
    if (!is_stripped(model::NextChar(text, at))) break;
    text.remove_prefix(at);
  }
  while (right && !text.empty() && is_stripped(model::LastChar(text))) {
    text = text.substr(0, LastCharBegin(text));
  }
  return text;
}

template <class IsOfClass>
bool AreAll(std::string_view text, IsOfClass is_of_class) {
  for (size_t at = 0; at < text.size();) {
    if (!is_of_class(model::NextChar(text, at))) return false;
  }
  return !text.empty();
}

std::string OneUpper(char32_t c) {
  std::string text;
  model::AppendUpper(c, text);
  return text;
}
std::string OneLower(char32_t c) {
  std::string text;
  model::AppendLower(c, text);
  return text;
}
std::string One(char32_t c) {
  std::string text;
  model::AppendChar(c, text);
  return text;
}

bool IsLineEnd(char32_t c) {
  return (c >= 0xa && c <= 0xd) || (c >= 0x1c && c <= 0x1e) || c == 0x85 || c == 0x2028 ||
         c == 0x2029;
}

bool IsDigitChar(char32_t c) {
  return model::IsDecimal(c) || c == 0xb2 || c == 0xb3 || c == 0xb9 || c == 0x2070 ||
         (c >= 0x2074 && c <= 0x2079) || (c >= 0x2080 && c <= 0x2089);
}

bool HasCase(std::string_view text, bool lower) {
  bool is_cased = false;
  for (size_t at = 0; at < text.size();) {
    const char32_t c = model::NextChar(text, at);
    if ((lower ? OneLower(c) : OneUpper(c)) != One(c)) return false;
    is_cased |= (lower ? OneUpper(c) : OneLower(c)) != One(c);
  }
  return is_cased;
}

}  // namespace

bool IsSpace(char32_t c) { return model::IsWhitespace(c) || (c >= 0x1c && c <= 0x1f); }

std::string_view StripSpace(std::string_view text, bool left, bool right) {
  return Strip(text, left, right, IsSpace);
}

std::string_view StripChars(std::string_view text, std::string_view chars, bool left, bool right) {
  return Strip(text, left, right, [&](char32_t c) { return chars.find(One(c)) != kNpos; });
}

std::string Upper(std::string_view text) {
  std::string upper;
  for (size_t at = 0; at < text.size();) model::AppendUpper(model::NextChar(text, at), upper);
  return upper;
}

std::string Lower(std::string_view text) {
  std::string lower;
  for (size_t at = 0; at < text.size();) model::AppendLower(model::NextChar(text, at), lower);
  return lower;
}

std::string Title(std::string_view text) {
  std::string title;
  bool in_word = false;
  for (size_t at = 0; at < text.size();) {
    const char32_t c = model::NextChar(text, at);
    if (in_word) {
      model::AppendLower(c, title);
    } else {
      model::AppendTitle(c, title);
    }
    in_word = OneUpper(c) != One(c) || OneLower(c) != One(c);
  }
  return title;
}

std::string Capitalize(std::string_view text) {
  std::string capitalized;
  size_t at = 0;
  if (!text.empty()) model::AppendTitle(model::NextChar(text, at), capitalized);
  return capitalized + Lower(text.substr(at));
}

size_t PrefixBytes(std::string_view text, int64_t n_chars) {
  size_t at = 0;
  for (; n_chars > 0 && at < text.size(); --n_chars) model::NextChar(text, at);
  return at;
}

std::vector<std::string_view> Chars(std::string_view text) {
  std::vector<std::string_view> chars;
  for (size_t at = 0; at < text.size();) {
    const size_t begin = at;
    model::NextChar(text, at);
    chars.push_back(text.substr(begin, at - begin));
  }
  return chars;
}

size_t FindBytes(std::string_view text, std::string_view what, size_t from) {
  if (from > text.size()) return kNpos;
  // memmem is linear; string_view::find takes time proportional to the product of the sizes.
  const void* found = memmem(text.data() + from, text.size() - from, what.data(), what.size());
  return found == nullptr ? kNpos
                          : static_cast<size_t>(static_cast<const char*>(found) - text.data());
}

size_t Count(std::string_view text, std::string_view what) {
  if (what.empty()) return model::CountChars(text) + 1;
  size_t n = 0;
  for (size_t at = FindBytes(text, what); at != kNpos; at = FindBytes(text, what, at + what.size()))
    ++n;
  return n;
}

std::string Replace(std::string_view text, std::string_view what, std::string_view by,
                    size_t max_count) {
  std::string replaced;
  size_t at = 0;
  for (; max_count > 0; --max_count) {
    const size_t found = FindBytes(text, what, at);
    if (found == kNpos) break;
    replaced += text.substr(at, found - at);
    replaced += by;
    at = found + what.size();
    if (what.empty()) {
      if (at == text.size()) return replaced;
      const size_t begin = at;
      model::NextChar(text, at);
      replaced += text.substr(begin, at - begin);
    }
  }
  return replaced += text.substr(at);
}

std::vector<std::string_view> Split(std::string_view text, std::string_view separator,
                                    size_t max_splits, bool from_right) {
  std::vector<size_t> cuts;
  if (!from_right) {
    size_t at = FindBytes(text, separator);
    for (; at != kNpos && cuts.size() < max_splits; at = FindBytes(text, separator, at)) {
      cuts.push_back(at);
      at += separator.size();
    }
  } else {
    // Equal to a count from the left in both texts reversed.
    const std::string mirrored(text.rbegin(), text.rend());
    const std::string mirror(separator.rbegin(), separator.rend());
    size_t at = FindBytes(mirrored, mirror);
    for (; at != kNpos && cuts.size() < max_splits; at = FindBytes(mirrored, mirror, at)) {
      at += separator.size();
      cuts.push_back(text.size() - at);
    }
    std::ranges::reverse(cuts);
  }
  std::vector<std::string_view> parts;
  size_t begin = 0;
  for (const size_t cut : cuts) {
    parts.push_back(text.substr(begin, cut - begin));
    begin = cut + separator.size();
  }
  parts.push_back(text.substr(begin));
  return parts;
}

std::vector<std::string_view> SplitSpace(std::string_view text, size_t max_splits,
                                         bool from_right) {
  std::vector<std::string_view> words;
  text = StripSpace(text, !from_right, from_right);
  while (!text.empty() && words.size() < max_splits) {
    if (from_right) {
      size_t begin = text.size();
      while (begin > 0 && !IsSpace(model::LastChar(text.substr(0, begin)))) {
        begin = LastCharBegin(text.substr(0, begin));
      }
      words.push_back(text.substr(begin));
      text = StripSpace(text.substr(0, begin), false, true);
    } else {
      size_t end = 0;
      for (size_t at = 0; at < text.size() && !IsSpace(model::NextChar(text, at));) end = at;
      words.push_back(text.substr(0, end));
      text = StripSpace(text.substr(end), true, false);
    }
  }
  if (!text.empty()) words.push_back(text);
  if (from_right) std::ranges::reverse(words);
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
bool IsLowerCase(std::string_view text) { return HasCase(text, /*lower=*/true); }
bool IsUpperCase(std::string_view text) { return HasCase(text, /*lower=*/false); }

}  // namespace ovq::jinja
