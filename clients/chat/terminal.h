// Input and output of ovq-chat: reads turns, prints errors, and makes text safe to print.
#pragma once

#include <grpcpp/grpcpp.h>

#include <cstdio>
#include <optional>
#include <string>
#include <string_view>

#include "clients/channel/channel.h"

namespace ovq::clients {

inline constexpr char kChat[] = "ovq-chat";

// Complain prints an error on a line that begins with the program's name, and returns the program's
// exit status. That of a call ends with the id that the server's log has for it.
int Complain(absl::string_view message);
int Complain(const Connection& connection, const grpc::Status& status,
             const grpc::ClientContext& context);

void PrintFlushed(std::FILE* file, std::string_view text);

// A source of a conversation's turns.
class Input {
 public:
  virtual ~Input() = default;

  // Returns the next turn without its final newline; nullopt at the end of input.
  virtual std::optional<std::string> Next(const std::string& prompt) = 0;
  // Whether Ctrl-C is a key now, if it ever is. Until then it is a signal. Any thread.
  virtual bool reading() const { return true; }
  // True if Ctrl-C ended the input.
  virtual bool interrupted() const { return false; }
};

// Reads one turn for each line of stdin, terminal or not; prompts go to stderr.
class LineReader final : public Input {
 public:
  std::optional<std::string> Next(const std::string& prompt) override;
};

// How stderr shows text other than the answers.
struct Screen {
  bool terminal = false;  // interactive: show a banner, roles and empty lines between turns
  bool color = false;

  static Screen OfThisProcess();

  std::string Dim(std::string_view text) const;
  std::string Bold(std::string_view text) const;
  void Show(std::string_view text) const { PrintFlushed(stderr, text); }
};

std::string HumanBytes(double bytes);  // formats a size, such as "1.3 MiB"

// Shows control characters other than newline and tab as ^X, so that an answer cannot control the
// terminal; those from U+0080 to U+009F, too, each as ^[X, the two characters that it is short for.
std::string Printable(std::string_view text);

}  // namespace ovq::clients
