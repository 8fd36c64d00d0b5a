#include "model/token_text.h"

#include <algorithm>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/text.h"
#include "model/tokenizers/chars.h"

namespace ovq::model {
namespace {

bool ContinuesCharacter(char byte) { return (static_cast<uint8_t>(byte) & 0xc0) == 0x80; }

std::string EscapedBytes(std::string_view bytes) {
  std::string text = "bytes:";
  for (const char byte : bytes) {
    const bool is_plain = byte >= ' ' && byte <= '~' && byte != '\\';
    if (is_plain) text += byte;
    if (!is_plain) absl::StrAppendFormat(&text, "\\x%02x", static_cast<uint8_t>(byte));
  }
  return text;
}

}  // namespace

ShownToken ShowToken(const Tokenizer* tokenizer, int32_t id) {
  ShownToken shown;
  if (tokenizer != nullptr) shown.bytes = tokenizer->Bytes(id);
  shown.text = shown.bytes.empty()             ? absl::StrCat("token_id:", id)
               : FirstInvalidUtf8(shown.bytes) ? EscapedBytes(shown.bytes)
                                               : shown.bytes;
  return shown;
}

TextOffsets::TextOffsets(const Tokenizer* tokenizer, bool at_start) : tokenizer_(tokenizer) {
  if (tokenizer != nullptr) detokenizer_.emplace(tokenizer, at_start);
}

void TextOffsets::Precede(std::span<const int32_t> ids) {
  if (detokenizer_) detokenizer_->Precede(ids);
}

int64_t TextOffsets::Add(int32_t id) {
  if (!detokenizer_) return 0;
  std::string bytes = tokenizer_->IsSilent(id) ? "" : tokenizer_->Bytes(id);
  const auto begin = std::ranges::find_if_not(bytes, ContinuesCharacter);
  const bool continues = begin != bytes.begin();
  bytes.erase(bytes.begin(), begin);
  const std::string text = detokenizer_->Push(id);
  int64_t place;
  if (text.empty()) {
    place = released_ + held_ - (continues ? 1 : 0);
    held_ += std::ssize(bytes) - std::ranges::count_if(bytes, ContinuesCharacter);
  } else {
    released_ += static_cast<int64_t>(CountChars(text));
    // The text ends with the token's characters, but for one that it leaves unfinished.
    const std::string own = ConsumeUtf8(bytes);
    place = released_ - static_cast<int64_t>(CountChars(own)) - (continues ? 1 : 0);
    held_ = bytes.empty() ? 0 : 1;
  }
  return last_ = std::max(last_, place);
}

}  // namespace ovq::model
