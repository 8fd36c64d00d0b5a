#include "clients/chat/prompt_text.h"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdint>

namespace ovq {
namespace {

bool IsContinuation(char byte) { return (static_cast<uint8_t>(byte) & 0xC0) == 0x80; }

// Bytes of the character that text begins with; 0 if it is not valid.
size_t CharacterBytes(std::string_view text) {
  const auto lead = static_cast<uint8_t>(text[0]);
  if (lead < 0x80) return 1;
  const size_t bytes = lead >= 0xF0 ? 4 : lead >= 0xE0 ? 3 : 2;
  if (lead < 0xC2 || lead > 0xF4 || text.size() < bytes) return 0;
  for (size_t i = 1; i < bytes; ++i) {
    if (!IsContinuation(text[i])) return 0;
  }
  const auto second = static_cast<uint8_t>(text[1]);
  const bool overlong = (lead == 0xE0 && second < 0xA0) || (lead == 0xF0 && second < 0x90);
  const bool surrogate = lead == 0xED && second > 0x9F;
  const bool beyond = lead == 0xF4 && second > 0x8F;
  return overlong || surrogate || beyond ? 0 : bytes;
}

}  // namespace

std::optional<size_t> FirstInvalidUtf8(std::string_view text) {
  for (size_t i = 0; i < text.size();) {
    const size_t bytes = CharacterBytes(text.substr(i));
    if (bytes == 0) return i;
    i += bytes;
  }
  return std::nullopt;
}

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

std::optional<std::string> ReadAll(int fd) {
  std::string text;
  std::array<char, 1 << 16> buffer;
  while (true) {
    const ssize_t n = read(fd, buffer.data(), buffer.size());
    if (n == 0) return text;
    if (n > 0) {
      text.append(buffer.data(), static_cast<size_t>(n));
    } else if (errno != EINTR) {
      return std::nullopt;
    }
  }
}

std::optional<std::string> ReadFile(const std::string& path) {
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return std::nullopt;
  std::optional<std::string> text = ReadAll(fd);
  const int error = errno;
  close(fd);
  errno = error;
  return text;
}

}  // namespace ovq
