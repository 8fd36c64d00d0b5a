// What a conversation needs of the terminal: lines of input that can be stopped, text that is safe.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace ovq {

// Lines of stdin. Next is for one thread; Stop for any.
class LineReader {
 public:
  LineReader();
  ~LineReader();
  LineReader(const LineReader&) = delete;
  LineReader& operator=(const LineReader&) = delete;

  // Without its newline; nullopt at the end of input and after Stop.
  std::optional<std::string> Next();
  void Stop();

 private:
  int stop_fd_;
  std::string buffer_;
  bool ended_ = false;
};

std::string HumanBytes(double bytes);  // "1.3 MiB"

// Control characters other than newline and tab as ^X, so that an answer cannot steer a terminal.
std::string Printable(std::string_view text);

}  // namespace ovq
