// Terminal input and output of ovq-chat: reads turns, and makes text safe to print.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace ovq::clients {

// A source of a conversation's turns. Next is called on one thread, Stop on any.
class Input {
 public:
  virtual ~Input() = default;

  // Returns the next turn without its final newline; nullopt at the end of input and after Stop.
  virtual std::optional<std::string> Next(const std::string& prompt) = 0;
  virtual void Stop() = 0;
  // True if Ctrl-C ended the input.
  virtual bool interrupted() const { return false; }
};

// Reads one turn for each line of stdin, terminal or not; prompts go to stderr.
class LineReader final : public Input {
 public:
  LineReader();
  ~LineReader() override;
  LineReader(const LineReader&) = delete;
  LineReader& operator=(const LineReader&) = delete;

  std::optional<std::string> Next(const std::string& prompt) override;
  void Stop() override;

 private:
  int stop_fd_;
  std::string buffer_;
  bool ended_ = false;
};

// How stderr shows text other than the answers.
struct Screen {
  bool terminal = false;  // interactive: show a banner, roles and empty lines between turns
  bool color = false;

  static Screen OfThisProcess();

  std::string Dim(std::string_view text) const;
  std::string Bold(std::string_view text) const;
  void Show(std::string_view text) const;  // writes to stderr and flushes
};

std::string HumanBytes(double bytes);  // formats a size, such as "1.3 MiB"

// Shows control characters other than newline and tab as ^X, so that an answer cannot control the
// terminal.
std::string Printable(std::string_view text);

}  // namespace ovq::clients
