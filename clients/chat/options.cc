#include "clients/chat/options.h"

#include <cstdlib>
#include <string>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace ovq {
namespace {

using Value = const std::string&;

// value_name is null for a switch; set returns false on a bad value.
struct Flag {
  const char* name;
  const char* value_name;
  const char* help;
  bool (*set)(ChatOptions&, Value);
};

template <typename Message>
bool SetUint32(Message* message, void (Message::*setter)(uint32_t), Value text) {
  uint32_t value = 0;
  if (!absl::SimpleAtoi(text, &value)) return false;
  (message->*setter)(value);
  return true;
}

bool SetFloat(v1::SamplingParams& sampling, void (v1::SamplingParams::*setter)(float), Value text) {
  float value = 0;
  if (!absl::SimpleAtof(text, &value)) return false;
  (sampling.*setter)(value);
  return true;
}

bool SetSeed(ChatOptions& o, Value text) {
  uint64_t seed = 0;
  if (!absl::SimpleAtoi(text, &seed)) return false;
  o.sampling.set_seed(seed);
  return true;
}

bool SetTtl(ChatOptions& o, Value text) {
  int64_t seconds = 0;
  if (!absl::SimpleAtoi(text, &seconds) || seconds <= 0) return false;
  o.open.mutable_ttl()->set_seconds(seconds);
  return true;
}

// Ranges are the server's business: it names the field and the range in its error.
constexpr Flag kFlags[] = {
    {"server", "HOST:PORT", "the server; default 127.0.0.1:50051 or $OVQ_SERVER",
     [](ChatOptions& o, Value v) {
       o.connect.server = v;
       return !v.empty();
     }},
    {"tls-ca", "FILE", "TLS, with the server's authority from this PEM file; default plain text",
     [](ChatOptions& o, Value v) {
       o.connect.tls_ca = v;
       return !v.empty();
     }},
    {"tls-cert", "FILE", "TLS, with this PEM certificate for a server that asks for one",
     [](ChatOptions& o, Value v) {
       o.connect.tls_cert = v;
       return !v.empty();
     }},
    {"tls-key", "FILE", "PEM key of --tls-cert",
     [](ChatOptions& o, Value v) {
       o.connect.tls_key = v;
       return !v.empty();
     }},
    {"token-file", "FILE", "file whose first line is the token for the server",
     [](ChatOptions& o, Value v) {
       o.connect.token_file = v;
       return !v.empty();
     }},
    {"prompt", "TEXT", "one question on the command line, then exit",
     [](ChatOptions& o, Value v) {
       o.prompt = v;
       return true;
     }},
    {"file", "PATH", "one question from a file, used byte for byte, then exit",
     [](ChatOptions& o, Value v) {
       o.file = v;
       return !v.empty();
     }},
    {"interactive", nullptr, "a turn per line of input, also when that is not a terminal",
     [](ChatOptions& o, Value) { return o.interactive = true; }},
    {"session", "ID", "continue this session; it outlives this program",
     [](ChatOptions& o, Value v) {
       o.open.set_session_id(v);
       return !v.empty();
     }},
    {"keep-session", nullptr, "keep the new session afterwards and print its id",
     [](ChatOptions& o, Value) {
       o.open.set_keep_session(true);
       return true;
     }},
    {"ttl", "SECONDS", "idle time after which a kept session is deleted; default the server's",
     SetTtl},
    {"max-centroids", "N", "dictionary cap of the new session; default the model's",
     [](ChatOptions& o, Value v) {
       return SetUint32(&o.open, &v1::ChatOpen::set_max_centroids, v);
     }},
    {"max-tokens", "N", "longest answer; default 256",
     [](ChatOptions& o, Value v) {
       return SetUint32(&o.stop, &v1::StopConditions::set_max_tokens, v);
     }},
    {"temperature", "T", "0 = always the likeliest token; default 1",
     [](ChatOptions& o, Value v) {
       return SetFloat(o.sampling, &v1::SamplingParams::set_temperature, v);
     }},
    {"top-k", "K", "draw from the K likeliest tokens; default 0 = all",
     [](ChatOptions& o, Value v) {
       return SetUint32(&o.sampling, &v1::SamplingParams::set_top_k, v);
     }},
    {"top-p", "P", "draw from the likeliest tokens that add up to P; default 1",
     [](ChatOptions& o, Value v) {
       return SetFloat(o.sampling, &v1::SamplingParams::set_top_p, v);
     }},
    {"min-p", "P", "drop tokens below P times the likeliest one; default 0",
     [](ChatOptions& o, Value v) {
       return SetFloat(o.sampling, &v1::SamplingParams::set_min_p, v);
     }},
    {"seed", "N", "of the random numbers; default drawn by the server", SetSeed},
    {"stop", "TEXT", "end the answer before this text; may be given several times",
     [](ChatOptions& o, Value v) {
       o.stop.add_stop_strings(v);
       return !v.empty();
     }},
    {"ignore-eos", nullptr, "never draw the end-of-sequence token",
     [](ChatOptions& o, Value) {
       o.stop.set_ignore_eos(true);
       return true;
     }},
    {"logprobs", nullptr, "list every token's id and log-probability on stderr after the answer",
     [](ChatOptions& o, Value) {
       o.output.set_logprobs(true);
       return true;
     }},
    {"help", nullptr, "this text", [](ChatOptions& o, Value) { return o.help = true; }},
};

const Flag* FindFlag(Value name) {
  for (const Flag& flag : kFlags) {
    if (name == flag.name) return &flag;
  }
  return nullptr;
}

}  // namespace

std::string ParseOptions(int argc, const char* const* argv, ChatOptions& options) {
  const char* server = std::getenv("OVQ_SERVER");
  if (server != nullptr && *server != '\0') options.connect.server = server;
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    if (argument.substr(0, 2) != "--") {
      return absl::StrCat("unexpected argument '", argument, "'; a question goes with --prompt");
    }
    const size_t equals = argument.find('=');
    const Flag* flag =
        FindFlag(argument.substr(2, equals == std::string::npos ? equals : equals - 2));
    if (flag == nullptr) return absl::StrCat("unknown flag ", argument.substr(0, equals));
    std::string value;
    if (equals != std::string::npos) {
      if (flag->value_name == nullptr) return absl::StrCat("--", flag->name, " takes no value");
      value = argument.substr(equals + 1);
    } else if (flag->value_name != nullptr) {
      if (++i == argc) return absl::StrCat("--", flag->name, " needs a value");
      value = argv[i];
    }
    if (!flag->set(options, value)) {
      return absl::StrCat("--", flag->name, ": '", value, "' is not a valid ", flag->value_name);
    }
  }
  if (options.prompt.has_value() + options.file.has_value() + options.interactive > 1) {
    return "give one of --prompt, --file and --interactive";
  }
  return "";
}

std::string HelpText() {
  std::string text =
      "Usage: ovq-chat [flags]\n"
      "A conversation with an ovq-server. On a terminal: one turn a line, the answer on stdout.\n"
      "With --prompt, --file or input from a pipe: one question, one answer.\n"
      "In a conversation: /stats shows the session, /quit or end of input ends it, Ctrl-C cancels\n"
      "the running answer, a second one ends the program.\n"
      "Exit status: 0 fine, 1 error, 2 bad usage, 130 interrupted.\n\n";
  for (const Flag& flag : kFlags) {
    const std::string left = flag.value_name == nullptr
                                 ? absl::StrCat("--", flag.name)
                                 : absl::StrCat("--", flag.name, " ", flag.value_name);
    absl::StrAppendFormat(&text, "  %-20s %s\n", left, flag.help);
  }
  return text;
}

}  // namespace ovq
