#include "model/tokenizers/normal_form.h"

#include <utf8proc.h>

#include <algorithm>
#include <bitset>
#include <memory>
#include <string_view>
#include <vector>

#include "model/tokenizers/chars.h"

namespace ovq::model {
namespace {

using Chars = std::vector<utf8proc_int32_t>;

int CombiningClass(utf8proc_int32_t c) { return utf8proc_get_property(c)->combining_class; }

void AppendDecomposed(char32_t c, bool compatible, Chars& chars) {
  constexpr size_t kMost = 32;  // the longest decomposition has 18 characters
  utf8proc_int32_t parts[kMost];
  int boundary = 0;
  const auto options = static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_DECOMPOSE |
                                                      (compatible ? UTF8PROC_COMPAT : 0));
  const utf8proc_ssize_t n =
      utf8proc_decompose_char(static_cast<utf8proc_int32_t>(c), parts, kMost, options, &boundary);
  chars.insert(chars.end(), parts, parts + n);
}

// Sorts the marks after a character by combining class; utf8proc's own exchange of neighbours is
// quadratic in their number.
void OrderMarks(Chars& chars) {
  for (auto from = chars.begin(); from != chars.end();) {
    if (CombiningClass(*from) == 0) {
      ++from;
      continue;
    }
    const auto end =
        std::find_if(from, chars.end(), [](utf8proc_int32_t c) { return CombiningClass(c) == 0; });
    std::stable_sort(from, end, [](utf8proc_int32_t a, utf8proc_int32_t b) {
      return CombiningClass(a) < CombiningClass(b);
    });
    from = end;
  }
}

// Any form but NFKC.
void AppendNormalized(std::string_view text, NormalForm form, std::string& result) {
  const bool compatible = form == NormalForm::kNfkd, composed = form == NormalForm::kNfc;
  Chars chars;
  for (size_t at = 0; at < text.size();) AppendDecomposed(NextChar(text, at), compatible, chars);
  OrderMarks(chars);
  if (composed) {
    const auto options = static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE);
    const utf8proc_ssize_t n = utf8proc_normalize_utf32(
        chars.data(), static_cast<utf8proc_ssize_t>(chars.size()), options);
    chars.resize(static_cast<size_t>(n));
  }
  for (utf8proc_int32_t c : chars) AppendChar(static_cast<char32_t>(c), result);
}

// Characters that are in NFC by themselves and never combine with preceding ones. Text of only such
// characters is in NFC, and any text can be split before one.
class InertChars {
 public:
  InertChars() {
    inert_.set();
    for (char32_t c = 0x80; c < kEnd; ++c) {
      if (c >= 0xd800 && c < 0xe000) continue;
      if (CombiningClass(static_cast<utf8proc_int32_t>(c)) != 0) inert_.reset(c);
      Chars parts;
      AppendDecomposed(c, false, parts);
      if (parts.size() == 1 && static_cast<char32_t>(parts[0]) == c) continue;
      for (size_t i = 1; i < parts.size(); ++i) inert_.reset(static_cast<size_t>(parts[i]));
      std::string self, normalized;
      AppendChar(c, self);
      AppendNormalized(self, NormalForm::kNfc, normalized);
      if (normalized != self) inert_.reset(c);
    }
  }
  bool Has(char32_t c) const { return c >= kEnd || inert_[c]; }

 private:
  static constexpr size_t kEnd = 0x30000;  // no character from here on decomposes or combines
  std::bitset<kEnd> inert_;
};

void ToNfc(std::string& text) {
  static const InertChars* const inert = new InertChars;
  std::string result;
  size_t copied = 0;  // text before this offset is in result
  size_t last = 0;    // where the last inert character begins
  for (size_t at = 0; at < text.size();) {
    const size_t begin = at;
    if (inert->Has(NextChar(text, at))) {
      last = begin;
      continue;
    }
    for (size_t next = at; next < text.size() && !inert->Has(NextChar(text, next));) at = next;
    result.append(text, copied, last - copied);
    AppendNormalized(std::string_view(text).substr(last, at - last), NormalForm::kNfc, result);
    copied = last = at;
  }
  if (copied == 0) return;
  result.append(text, copied);
  text = std::move(result);
}

}  // namespace

void Normalize(NormalForm form, std::string& text) {
  if (std::ranges::all_of(text, [](char byte) { return (byte & 0x80) == 0; })) return;
  if (form == NormalForm::kNfc) return ToNfc(text);
  const bool composes = form == NormalForm::kNfkc;
  std::string result;
  AppendNormalized(text, composes ? NormalForm::kNfkd : form, result);
  text = std::move(result);
  // NFKC is NFC of NFKD. Composed as a whole a text could lose U+11A7, which utf8proc takes for a
  // part of the Hangul syllable before it; ToNfc never puts the two together.
  if (composes) ToNfc(text);
}

}  // namespace ovq::model
