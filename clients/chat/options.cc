#include "clients/chat/options.h"

#include "absl/strings/str_cat.h"
#include "base/flags.h"
#include "base/status_macros.h"
#include "clients/chat/line_editor.h"
#include "clients/chat/settings.h"

namespace ovq::clients {
namespace {

constexpr int64_t kMaxSeconds = 315'576'000'000;  // upper bound of a protobuf Duration

void AddConversation(Flags& flags, ChatOptions& o) {
  AddConnection(flags, o.connect);
  const auto any_text = [](std::string_view text) { return std::optional(std::string(text)); };
  flags.Add("prompt", "TEXT",
            ReadTo([&o](const auto& text) { o.prompt = text; }, "any text", any_text),
            "one question on the command line, then exit");
  flags.Add("file", "PATH", Text(o.file, "a file"),
            "one question from a file, used byte for byte, then exit");
  flags.AddSwitch(
      "interactive", [&o] { o.interactive = true; },
      "a turn per line of input, also when that is not a terminal");
  flags.AddSwitch(
      "messages", [&o] { o.messages = true; },
      "questions are a user's messages, written as the model's chat template does; in new\n"
      "sessions. A conversation on a terminal does so where the model has one");
  flags.AddSwitch(
      "text", [&o] { o.as_text = true; },
      "questions are text that the model goes on from, also where it has a chat template");
  flags.Add("system", "TEXT",
            ReadTo(
                [&o](const auto& text) {
                  o.system = text;
                  o.messages = true;
                },
                "a text", ParseText),
            "a system message before the first question; means --messages");
  flags.Add("session", "ID",
            ReadTo([&o](const auto& id) { o.open.set_session_id(id); }, "an id", ParseText),
            "continue this session; it outlives this program");
  flags.AddSwitch(
      "keep-session", [&o] { o.open.set_keep_session(true); },
      "keep the new session afterwards and print its id");
  flags.Add(
      "ttl", "SECONDS",
      NumberTo<int64_t>([&o](auto s) { o.open.mutable_ttl()->set_seconds(s); }, 1, kMaxSeconds),
      "idle time after which a kept session is deleted", "the server's");
  flags.Add("memory", "NAME",
            ReadTo([&o](const auto& name) { o.open.set_memory(name); }, "a name", ParseText),
            "what the new session keeps of its context, of those that the server offers",
            "the server's");
  flags.Add("max-centroids", "N", NumberTo<uint32_t>([&o](auto n) { o.open.set_max_centroids(n); }),
            "dictionary cap of the new session", "the model's");
  flags.Add("history", "FILE",
            ReadInto(
                o.history_file, "a file or ''",
                [](std::string_view text) { return std::optional(std::string(text)); },
                [](const std::string& held) { return held; }),
            "where what is typed on a terminal is kept for later runs; '' for nowhere");
}

Flags Declare(ChatOptions& options) {
  options.history_file = DefaultHistoryFile();
  Flags flags;
  AddConversation(flags, options);
  AddSettings(flags, options.turn);
  AddHelpAndVersion(flags, options.info_request);
  return flags;
}

}  // namespace

absl::StatusOr<ChatOptions> ParseOptions(std::span<const std::string> args) {
  ChatOptions options;
  RETURN_IF_ERROR(Declare(options).Read(args));
  if (options.info_request != InfoRequest::kNothing) return options;
  RETURN_IF_ERROR(CheckConnection(options.connect));
  if (options.messages && options.open.has_session_id()) {
    return absl::InvalidArgumentError(
        "--messages and --system are for new sessions: not with "
        "--session");
  }
  if (options.messages && options.as_text) {
    return absl::InvalidArgumentError("--text does not go with --messages and --system");
  }
  if (options.prompt.has_value() + options.file.has_value() + options.interactive > 1) {
    return absl::InvalidArgumentError("give one of --prompt, --file and --interactive");
  }
  return options;
}

std::string HelpText() {
  ChatOptions options;
  return absl::StrCat(
      "Usage: ovq-chat [flags]\n"
      "A conversation with an ovq-server. On a terminal: what is typed or pasted until Enter is a\n"
      "turn, the answer comes on stdout. With --prompt, --file or input from a pipe: one "
      "question,\n"
      "one answer.\n"
      "On a terminal lines can be edited (keys as in bash), Up brings earlier ones back, "
      "Alt-Enter\n"
      "begins a new line. Ctrl-C cancels the running answer, /help lists the commands; /quit or\n"
      "Ctrl-D ends the conversation.\n"
      "Exit status: 0 fine, 1 error, 2 bad usage, 130 interrupted.\n\n",
      Declare(options).Help());
}

}  // namespace ovq::clients
