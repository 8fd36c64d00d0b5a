// ovq-chat: a client that talks to an ovq-server from a terminal or a script.
#include <signal.h>
#include <unistd.h>

#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/files.h"
#include "base/signals.h"
#include "base/text.h"
#include "clients/channel/channel.h"
#include "clients/chat/dialogue.h"
#include "clients/chat/line_editor.h"
#include "clients/chat/options.h"
#include "clients/chat/terminal.h"

namespace ovq::clients {
namespace {

constexpr size_t kMaxQuestionBytes = size_t{1} << 30;

int Converse(const Connection& connection, ChatOptions& options, const Screen& screen,
             const std::optional<std::string>& question, const std::vector<int>& signals) {
  LineReader reader;
  std::optional<LineEditor> editor;
  if (!question && screen.terminal) editor.emplace(options.history_file, screen.color);
  Dialogue dialogue(connection, options, screen, editor ? static_cast<Input&>(*editor) : reader);
  const SignalWaiter waiter(signals, [&](int signal) {
    if (signal == SIGWINCH) return editor->Resized();
    if (signal == SIGINT && dialogue.OnInterrupt()) return;
    if (editor) editor->Restore();
    dialogue.Abandon();
    _exit(128 + signal);
  });
  return dialogue.Run(question);
}

// Returns the question from --prompt, --file or a pipe; nullopt for an interactive conversation.
absl::StatusOr<std::optional<std::string>> ReadQuestion(const ChatOptions& options) {
  absl::StatusOr<std::string> text;
  if (options.file) {
    text = ReadFileOrPipe(*options.file, kMaxQuestionBytes);
  } else if (options.prompt || options.interactive || isatty(STDIN_FILENO) != 0) {
    return options.prompt;
  } else {
    text = ReadStream(stdin, "stdin", kMaxQuestionBytes);
  }
  if (!text.ok()) return text.status();
  return *std::move(text);
}

int Main(const std::vector<std::string>& args) {
  absl::StatusOr<ChatOptions> options = ParseOptions(args);
  if (!options.ok()) return Fail(kChat, kExitUsage, options.status().message());
  const absl::StatusOr<std::optional<std::string>> question = ReadQuestion(*options);
  if (!question.ok()) return Complain(question.status().message());
  options->interactive = !question->has_value();
  if (*question) {
    if (const std::optional<size_t> invalid = FirstInvalidUtf8(**question)) {
      return Complain(absl::StrCat("the question is not valid UTF-8 at byte ", *invalid));
    }
  }
  const Screen screen = Screen::OfThisProcess();
  std::vector<int> signals = {SIGINT};
  // A terminal is restored before the program ends.
  if (screen.terminal && !*question) signals.insert(signals.end(), {SIGWINCH, SIGTERM, SIGHUP});
  BlockSignals(signals);
  const absl::StatusOr<Connection> connection = Connect(options->connect);
  if (!connection.ok()) return Fail(kChat, kExitUsage, connection.status().message());
  return EndOutput(kChat, Converse(*connection, *options, screen, *question, signals));
}

}  // namespace
}  // namespace ovq::clients

int main(int argc, char** argv) {
  return ovq::clients::Main(std::vector<std::string>(argv + 1, argv + argc));
}
