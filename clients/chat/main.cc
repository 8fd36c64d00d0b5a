// ovq-chat: a client that talks to an ovq-server from a terminal or a script.
#include <signal.h>
#include <unistd.h>

#include <cstdio>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/files.h"
#include "base/signals.h"
#include "base/text.h"
#include "clients/channel/channel.h"
#include "clients/chat/complain.h"
#include "clients/chat/conversation.h"
#include "clients/chat/dialogue.h"
#include "clients/chat/line_editor.h"
#include "clients/chat/options.h"
#include "clients/chat/terminal.h"

namespace ovq::clients {
namespace {

constexpr size_t kMaxQuestionBytes = size_t{1} << 30;

// Asks one question, prints the answer and returns the exit status.
int AskOnce(const Connection& connection, const ChatOptions& options, const Screen& screen,
            const std::string& question) {
  Conversation conversation(connection, options, screen);
  bool whole = false;
  {
    const SignalWaiter interrupts({SIGINT}, [&](int) { conversation.OnInterrupt(); });
    if (conversation.Open()) {
      if (options.open.keep_session()) {
        screen.Show(absl::StrCat("session ", conversation.session().session_id(), "\n"));
      }
      whole = conversation.Ask(question);
    }
  }
  const grpc::Status status = conversation.Close();
  const bool aborted = conversation.interrupted() && status.error_code() == grpc::CANCELLED;
  // The answer has arrived, so a server that drains or has gone away is not an error.
  const bool gone = whole && status.error_code() == grpc::UNAVAILABLE;
  if (!status.ok() && !aborted && !gone)
    return Complain(connection, status, conversation.RequestId());
  if (!whole && !aborted) return Complain("the server ended the conversation");
  return conversation.interrupted() ? kExitInterrupted : 0;
}

int ConverseOnTerminal(const Connection& connection, ChatOptions& options, const Screen& screen) {
  LineEditor editor(options.history_file, screen.color);
  Dialogue dialogue(connection, options, screen, editor);
  const SignalWaiter signals({SIGINT, SIGWINCH, SIGTERM, SIGHUP}, [&](int signal) {
    if (signal == SIGINT) {
      dialogue.OnInterrupt();
    } else if (signal == SIGWINCH) {
      editor.Resized();
    } else {  // restores the terminal before the process ends
      editor.Restore();
      _exit(128 + signal);
    }
  });
  return dialogue.Run();
}

int Converse(const Connection& connection, ChatOptions& options, const Screen& screen) {
  if (screen.terminal) return ConverseOnTerminal(connection, options, screen);
  LineReader reader;
  Dialogue dialogue(connection, options, screen, reader);
  const SignalWaiter interrupts({SIGINT}, [&](int) { dialogue.OnInterrupt(); });
  return dialogue.Run();
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
  if (!options.ok()) return Fail(kChat, kExitUsage, std::string(options.status().message()));
  if (options->info_request != InfoRequest::kNothing) {
    PrintInfo(options->info_request, kChat, HelpText());
    return 0;
  }
  const absl::StatusOr<std::optional<std::string>> question = ReadQuestion(*options);
  if (!question.ok()) return Complain(std::string(question.status().message()));
  options->interactive = !question->has_value();
  if (*question) {
    if (const std::optional<size_t> invalid = FirstInvalidUtf8(**question)) {
      return Complain(absl::StrCat("the question is not valid UTF-8 at byte ", *invalid));
    }
  }
  const Screen screen = Screen::OfThisProcess();
  BlockSignals({SIGINT});
  if (screen.terminal && options->interactive) BlockSignals({SIGWINCH, SIGTERM, SIGHUP});
  const absl::StatusOr<Connection> connection = Connect(options->connect);
  if (!connection.ok()) {
    return Fail(kChat, kExitUsage, std::string(connection.status().message()));
  }
  return *question ? AskOnce(*connection, *options, screen, **question)
                   : Converse(*connection, *options, screen);
}

}  // namespace
}  // namespace ovq::clients

int main(int argc, char** argv) {
  return ovq::clients::Main(std::vector<std::string>(argv + 1, argv + argc));
}
