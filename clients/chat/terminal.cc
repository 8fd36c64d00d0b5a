#include "clients/chat/terminal.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <utility>

#include "absl/strings/str_format.h"

namespace ovq::clients {
namespace {

// Wraps the text in an ECMA-48 escape sequence (SGR) and a reset.
std::string Styled(bool color, std::string_view style, std::string_view text) {
  std::string styled(text);
  if (color) styled = "\033[" + std::string(style) + "m" + styled + "\033[0m";
  return styled;
}

}  // namespace

LineReader::LineReader() : stop_fd_(eventfd(0, EFD_CLOEXEC)) {}

LineReader::~LineReader() { close(stop_fd_); }

std::optional<std::string> LineReader::Next(const std::string& prompt) {
  Screen().Show(prompt);
  while (true) {
    const size_t newline = buffer_.find('\n');
    if (newline != std::string::npos) {
      std::string line = buffer_.substr(0, newline);
      buffer_.erase(0, newline + 1);
      return line;
    }
    if (ended_) return buffer_.empty() ? std::nullopt : std::optional(std::exchange(buffer_, ""));
    std::array<pollfd, 2> fds = {pollfd{STDIN_FILENO, POLLIN, 0}, pollfd{stop_fd_, POLLIN, 0}};
    while (poll(fds.data(), fds.size(), -1) < 0 && errno == EINTR) {
    }
    if (fds[1].revents != 0) return std::nullopt;
    std::array<char, 1 << 16> bytes;
    const ssize_t n = read(STDIN_FILENO, bytes.data(), bytes.size());
    if (n > 0) buffer_.append(bytes.data(), static_cast<size_t>(n));
    if (n == 0 || (n < 0 && errno != EINTR)) ended_ = true;
  }
}

// The write fails only if the counter is full, and then Stop was called already.
void LineReader::Stop() { eventfd_write(stop_fd_, 1); }

Screen Screen::OfThisProcess() {
  const auto environment = [](const char* name) {
    const char* const value = std::getenv(name);
    return std::string_view(value == nullptr ? "" : value);
  };
  Screen screen;
  screen.terminal = isatty(STDIN_FILENO) != 0 && isatty(STDERR_FILENO) != 0;
  const std::string_view kind = environment("TERM");
  // https://no-color.org
  screen.color =
      screen.terminal && !kind.empty() && kind != "dumb" && environment("NO_COLOR").empty();
  return screen;
}

std::string Screen::Dim(std::string_view text) const { return Styled(color, "2", text); }
std::string Screen::Bold(std::string_view text) const { return Styled(color, "1", text); }

void Screen::Show(std::string_view text) const {
  std::fwrite(text.data(), 1, text.size(), stderr);
  std::fflush(stderr);
}

std::string HumanBytes(double bytes) {
  constexpr std::array<const char*, 5> kUnits = {"B", "KiB", "MiB", "GiB", "TiB"};
  size_t unit = 0;
  while (bytes >= 1024 && unit + 1 < kUnits.size()) {
    bytes /= 1024;
    ++unit;
  }
  return absl::StrFormat("%.*f %s", unit == 0 ? 0 : 1, bytes, kUnits[unit]);
}

std::string Printable(std::string_view text) {
  std::string out;
  for (const char c : text) {
    const auto byte = static_cast<uint8_t>(c);
    if (byte == 0x7F) {
      out += "^?";
    } else if (byte < 0x20 && c != '\n' && c != '\t') {
      out += '^';
      out += static_cast<char>(byte + '@');
    } else {
      out += c;
    }
  }
  return out;
}

}  // namespace ovq::clients
