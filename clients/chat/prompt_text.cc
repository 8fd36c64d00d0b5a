#include "clients/chat/prompt_text.h"

#include <cstdint>

namespace ovq {
namespace {

bool IsContinuation(char byte) { return (static_cast<uint8_t>(byte) & 0xC0) == 0x80; }

}  // namespace

std::vector<std::string_view> SplitPrompt(std::string_view text, size_t max_bytes) {
  std::vector<std::string_view> parts;
  while (text.size() > max_bytes) {
    size_t cut = max_bytes;
    while (IsContinuation(text[cut])) --cut;
    const size_t line_end = text.substr(0, cut).rfind('\n');
    if (line_end != std::string_view::npos && line_end + 1 >= max_bytes - max_bytes / 4) {
      cut = line_end + 1;
    }
    parts.push_back(text.substr(0, cut));
    text.remove_prefix(cut);
  }
  parts.push_back(text);
  return parts;
}

}  // namespace ovq
