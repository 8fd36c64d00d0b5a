// What a conversation needs of the terminal: lines of input, and Ctrl-C as an event.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <thread>

namespace ovq {

// From here on SIGINT only reaches an InterruptWatcher. Call it before threads start: they inherit
// the blocked signal.
void BlockInterrupts();

// Turns SIGINT into calls of on_interrupt on a thread of its own.
class InterruptWatcher {
 public:
  explicit InterruptWatcher(std::function<void()> on_interrupt);
  ~InterruptWatcher();
  InterruptWatcher(const InterruptWatcher&) = delete;
  InterruptWatcher& operator=(const InterruptWatcher&) = delete;

 private:
  void Watch();
  std::function<void()> on_interrupt_;
  int signal_fd_;
  int stop_fd_;
  std::thread thread_;
};

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
