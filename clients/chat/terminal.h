// What a conversation needs of the terminal: turns that come from it, text that is safe on it.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace ovq {

// Where the turns of a conversation come from. Next is for one thread, Stop for any.
class Input {
 public:
  virtual ~Input() = default;

  // The next turn, without the newline that ends it; nullopt at the end of input and after Stop.
  virtual std::optional<std::string> Next(const std::string& prompt) = 0;
  virtual void Stop() = 0;
  // The end was asked for by Ctrl-C.
  virtual bool interrupted() const { return false; }
};

// A turn for each line of stdin, whatever that is; prompts go to stderr.
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

// How text beside the answers looks on stderr.
struct Screen {
  bool terminal = false;  // somebody sits at it: a banner, roles, lines between turns
  bool color = false;

  static Screen OfThisProcess();

  std::string Dim(std::string_view text) const;
  std::string Bold(std::string_view text) const;
  std::string Red(std::string_view text) const;
  void Show(std::string_view text) const;  // on stderr, at once
};

std::string HumanBytes(double bytes);  // "1.3 MiB"

// Control characters other than newline and tab as ^X, so that an answer cannot steer a terminal.
std::string Printable(std::string_view text);

}  // namespace ovq
