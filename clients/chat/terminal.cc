#include "clients/chat/terminal.h"

#include <unistd.h>

#include <array>
#include <cstdint>
#include <cstdlib>
#include <iostream>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "clients/common/program.h"

namespace ovq::clients {
namespace {

// Wraps the text in an ECMA-48 escape sequence (SGR) and a reset.
std::string Styled(bool color, std::string_view style, std::string_view text) {
  std::string styled(text);
  if (color) styled = "\033[" + std::string(style) + "m" + styled + "\033[0m";
  return styled;
}

}  // namespace

int Complain(absl::string_view message) { return Fail(kChat, kExitError, message); }

int Complain(const Connection& connection, const grpc::Status& status,
             const grpc::ClientContext& context) {
  std::string text = Explained(status, connection.options).ToString();
  const auto& metadata = context.GetServerTrailingMetadata();
  if (const auto id = metadata.find("x-request-id"); id != metadata.end()) {
    absl::StrAppend(&text, " (request ", std::string(id->second.data(), id->second.size()), ")");
  }
  return Complain(text);
}

void PrintFlushed(std::FILE* file, std::string_view text) {
  std::fwrite(text.data(), 1, text.size(), file);
  std::fflush(file);
}

std::optional<std::string> LineReader::Next(const std::string& prompt) {
  PrintFlushed(stderr, prompt);
  std::string line;
  return std::getline(std::cin, line) ? std::optional(line) : std::nullopt;
}

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
  bool c1 = false;  // the byte before begins U+0080 to U+00BF
  for (const char c : text) {
    const auto byte = static_cast<uint8_t>(c);
    if (c1 && byte >= 0x80 && byte < 0xA0) {
      out.back() = '^';  // in place of the byte before
      out += '[';
      out += static_cast<char>(byte - '@');
    } else if (byte == 0x7F) {
      out += "^?";
    } else if (byte < 0x20 && c != '\n' && c != '\t') {
      out += '^';
      out += static_cast<char>(byte + '@');
    } else {
      out += c;
    }
    c1 = byte == 0xC2;
  }
  return out;
}

}  // namespace ovq::clients
