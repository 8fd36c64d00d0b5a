#include "clients/chat/options.h"

#include <cstdlib>

#include "absl/strings/str_cat.h"
#include "base/flags.h"

namespace ovq {
namespace {

constexpr int64_t kMaxSeconds = 315'576'000'000;  // of a protobuf Duration

void AddConversation(Flags& flags, ChatOptions& o) {
  flags.Add("server", "HOST:PORT", Text(o.connect.server, "an address"),
            "the server; the environment's OVQ_SERVER changes the default");
  AddCredentials(flags, o.connect);
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
      "questions are a user's messages, written as the model's chat template does; in new "
      "sessions");
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
}

// Ranges are the server's business: it names the field and the range in its error.
void AddAnswer(Flags& flags, ChatOptions& o) {
  v1::SamplingParams& sampling = *o.turn.mutable_sampling();
  v1::StopConditions& stop = *o.turn.mutable_stop();
  v1::OutputOptions& output = *o.turn.mutable_output();
  flags.Add("max-tokens", "N", NumberTo<uint32_t>([&](auto n) { stop.set_max_tokens(n); }),
            "longest answer", "256");
  flags.Add("temperature", "T", NumberTo<float>([&](auto t) { sampling.set_temperature(t); }),
            "0 = always the likeliest token", "1");
  flags.Add("top-k", "K", NumberTo<uint32_t>([&](auto k) { sampling.set_top_k(k); }),
            "draw from the K likeliest tokens; 0 = all", "0");
  flags.Add("top-p", "P", NumberTo<float>([&](auto p) { sampling.set_top_p(p); }),
            "draw from the likeliest tokens that add up to P", "1");
  flags.Add("min-p", "P", NumberTo<float>([&](auto p) { sampling.set_min_p(p); }),
            "drop tokens below P times the likeliest one", "0");
  flags.Add("seed", "N", NumberTo<uint64_t>([&](auto n) { sampling.set_seed(n); }),
            "of the random numbers", "drawn by the server");
  flags.Add("stop", "TEXT",
            ReadTo([&](const auto& text) { stop.add_stop_strings(text); }, "a text", ParseText),
            "end the answer before this text; may be given several times");
  flags.AddSwitch(
      "ignore-eos", [&] { stop.set_ignore_eos(true); }, "never draw the end-of-sequence token");
  flags.AddSwitch(
      "logprobs", [&] { output.set_logprobs(true); },
      "list every token's id and log-probability on stderr after the answer");
}

Flags Declare(ChatOptions& options) {
  const char* server = std::getenv("OVQ_SERVER");
  if (server != nullptr && *server != '\0') options.connect.server = server;
  Flags flags;
  AddConversation(flags, options);
  AddAnswer(flags, options);
  flags.AddEnd(
      "help", [&options] { options.help = true; }, "this text");
  return flags;
}

}  // namespace

absl::StatusOr<ChatOptions> ParseOptions(std::span<const std::string> args) {
  ChatOptions options;
  if (absl::Status status = Declare(options).Read(args); !status.ok()) return status;
  if (options.help) return options;
  if (absl::Status status = CheckCredentials(options.connect); !status.ok()) return status;
  if (options.messages && options.open.has_session_id()) {
    return absl::InvalidArgumentError(
        "--messages and --system are for new sessions: not with "
        "--session");
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
      "A conversation with an ovq-server. On a terminal: one turn a line, the answer on stdout.\n"
      "With --prompt, --file or input from a pipe: one question, one answer.\n"
      "In a conversation: /stats shows the session, /fork copies it and prints\n"
      "the copy's id, for --session, /undo takes the last question and its answer back,\n"
      "/save FILE writes the session to a new file, /load FILE makes a session of one and\n"
      "prints its id,\n"
      "/quit or end of input ends it, Ctrl-C cancels the running answer, a second one\n"
      "ends the program.\n"
      "Exit status: 0 fine, 1 error, 2 bad usage, 130 interrupted.\n\n",
      Declare(options).Help());
}

}  // namespace ovq
