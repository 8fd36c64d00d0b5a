#include "server/options.h"

#include <fstream>
#include <iterator>
#include <map>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "server/options_values.h"

namespace ovq {
namespace {

constexpr int64_t kIntMax = std::numeric_limits<int32_t>::max();

struct Flag {
  const char* name;
  const char* value;     // what --help calls the value
  const char* fallback;  // the default, as --help shows it
  const char* help;
  absl::Status (*set)(std::string_view text, Options& options);
};

absl::Status SetSize(std::string_view text, size_t& out) {
  absl::StatusOr<size_t> size = ParseSize(text);
  if (size.ok()) out = *size;
  return size.status();
}

const Flag kFlags[] = {
    {"model", "FOLDER", "required", "model folder: config.json, *.safetensors, tokenizer",
     [](std::string_view text, Options& o) {
       if (text.empty()) return Expected("a folder", text);
       o.model = std::string(text);
       return absl::OkStatus();
     }},
    {"listen", "HOST:PORT", "127.0.0.1:50051", "gRPC address; port 0 takes any free one",
     [](std::string_view text, Options& o) { return SetAddress(text, o.listen); }},
    {"metrics-address", "HOST:PORT", "127.0.0.1:9464",
     "Prometheus endpoint; '' for none, port 0 for any free one",
     [](std::string_view text, Options& o) {
       if (!text.empty()) return SetAddress(text, o.metrics_address);
       o.metrics_address.clear();
       return absl::OkStatus();
     }},
    {"device", "NAME", "cpu",
     "cpu, ref (slow, exact loops) or cuda, which needs a build with CUDA and a GPU of compute "
     "capability 8.0 or later",
     [](std::string_view text, Options& o) { return SetDevice(text, o.device); }},
    {"threads", "N", "0", "CPU threads; 0 takes every core",
     [](std::string_view text, Options& o) { return SetInteger(text, 0, 1024, o.threads); }},
    {"state-memory", "SIZE", "half of what is free after the weights",
     "budget for all sessions' states, in the memory of the device (of the GPU with cuda)",
     [](std::string_view text, Options& o) {
       return SetSize(text, o.state_memory_bytes.emplace());
     }},
    {"max-centroids", "N", "65536",
     "largest dictionary cap of a session; lowers the model's own default too",
     [](std::string_view text, Options& o) {
       return SetInteger(text, 2, 1 << 24, o.max_slot_cap);
     }},
    {"max-sessions", "N", "1024", "live sessions, one-shot requests included",
     [](std::string_view text, Options& o) {
       return SetInteger(text, 1, 1 << 20, o.max_sessions);
     }},
    {"state-dtype", "TYPE", "bf16 for BF16 checkpoints, else f32",
     "f32 or bf16: keys and values in session states",
     [](std::string_view text, Options& o) { return SetDType(text, o.state_dtype); }},
    {"compute-dtype", "TYPE", "bf16 for BF16 checkpoints, else f32", "f32 or bf16: matrix products",
     [](std::string_view text, Options& o) { return SetDType(text, o.compute_dtype); }},
    {"max-batch-tokens", "N", "512", "tokens computed together in one step",
     [](std::string_view text, Options& o) {
       return SetInteger(text, 1, 1 << 20, o.max_batch_tokens);
     }},
    {"max-queue", "N", "1024", "requests that may wait for admission",
     [](std::string_view text, Options& o) { return SetInteger(text, 0, kIntMax, o.max_queue); }},
    {"max-prompt-tokens", "N", "1048576", "tokens of one prompt",
     [](std::string_view text, Options& o) {
       return SetInteger(text, 1, kIntMax, o.max_prompt_tokens);
     }},
    {"max-context", "N", "1048576",
     "positions of a session, for models with full-attention layers only",
     [](std::string_view text, Options& o) { return SetInteger(text, 1, kIntMax, o.max_context); }},
    {"session-ttl", "DURATION", "30m", "idle time after which a session is deleted",
     [](std::string_view text, Options& o) {
       return SetDuration(text, absl::Milliseconds(1), absl::Hours(24 * 365), o.session_ttl);
     }},
    {"drain-timeout", "DURATION", "30s",
     "time that running requests get to finish after SIGTERM or SIGINT",
     [](std::string_view text, Options& o) {
       return SetDuration(text, absl::ZeroDuration(), absl::Hours(24), o.drain_timeout);
     }},
    {"max-message-bytes", "SIZE", "64M", "largest message accepted from a client; below 2G",
     [](std::string_view text, Options& o) {
       absl::Status status = SetSize(text, o.max_message_bytes);
       if (!status.ok() || o.max_message_bytes <= static_cast<size_t>(kIntMax)) return status;
       return Expected("a size below 2G", text);
     }},
    {"tls-cert", "FILE", "none: plain text",
     "PEM certificate of the server with its chain; it and the other TLS files are read again when "
     "they change",
     [](std::string_view text, Options& o) { return SetFile(text, o.tls_cert); }},
    {"tls-key", "FILE", "none", "PEM key of --tls-cert, without a passphrase",
     [](std::string_view text, Options& o) { return SetFile(text, o.tls_key); }},
    {"tls-client-ca", "FILE", "none: clients need no certificate",
     "PEM certificates of the authorities whose clients may connect, and no others",
     [](std::string_view text, Options& o) { return SetFile(text, o.tls_client_ca); }},
    {"tenants", "FILE", "none: whoever can connect may call",
     "JSON file of tenants, their tokens and limits (docs/security.md); read again when it changes",
     [](std::string_view text, Options& o) { return SetFile(text, o.tenants); }},
    {"admin-listen", "HOST:PORT", "none",
     "address of ovq.v1.AdminService; beyond loopback only with --tenants",
     [](std::string_view text, Options& o) { return SetAddress(text, o.admin_listen); }},
    {"max-streams-per-connection", "N", "1024",
     "calls at a time on one connection; a client holds further ones back",
     [](std::string_view text, Options& o) {
       return SetInteger(text, 1, 1 << 20, o.max_streams_per_connection);
     }},
    {"handshake-timeout", "DURATION", "10s",
     "time from a connection to the end of its TLS and HTTP/2 handshakes",
     [](std::string_view text, Options& o) {
       return SetDuration(text, absl::Milliseconds(1), absl::Hours(1), o.handshake_timeout);
     }},
    {"max-connection-idle", "DURATION", "no end",
     "time after which a connection without calls ends",
     [](std::string_view text, Options& o) {
       return SetDuration(text, absl::Seconds(1), absl::Hours(24 * 20), o.max_connection_idle);
     }},
    {"log-format", "FORMAT", "text", "text or json, one object a line; on stderr",
     [](std::string_view text, Options& o) { return SetChoice(text, kLogFormats, o.log.format); }},
    {"log-level", "LEVEL", "info", "lines below it are left out: debug, info, warning, error",
     [](std::string_view text, Options& o) { return SetChoice(text, kLogLevels, o.log.level); }},
    {"log-requests", "WHICH", "all", "calls that get a line when they end: none, errors, all",
     [](std::string_view text, Options& o) {
       return SetChoice(text, kLogRequests, o.log_requests);
     }},
    {"log-rate", "N", "50",
     "lines a second of one kind and level, twice as many at once; others are counted only",
     [](std::string_view text, Options& o) {
       return SetInteger(text, 1, 1'000'000, o.log.lines_per_second);
     }},
    {"plan-centroids", "N,N,...", "the model's default cap", "--plan: dictionary caps to plan for",
     [](std::string_view text, Options& o) {
       return SetIntegers(text, 2, 1 << 24, o.plan_slot_caps);
     }},
    {"plan-tokens", "N,N,...", "1024,32768,1048576", "--plan: lengths of sessions to plan for",
     [](std::string_view text, Options& o) {
       return SetIntegers(text, 1, int64_t{1} << 48, o.plan_tokens);
     }},
};

const Flag* FindFlag(std::string_view name) {
  for (const Flag& flag : kFlags) {
    if (name == flag.name) return &flag;
  }
  return nullptr;
}

std::string EnvName(std::string_view flag) {
  return absl::StrCat("OVQ_", absl::AsciiStrToUpper(absl::StrReplaceAll(
                                  absl::string_view(flag.data(), flag.size()), {{"-", "_"}})));
}

// What the command line says, before any value is looked at.
struct RawFlags {
  CommandLine::Action action = CommandLine::Action::kServe;
  std::map<std::string, std::string> values;  // "config" included; the last of a name wins
};

absl::StatusOr<RawFlags> SplitFlags(std::span<const std::string> args) {
  RawFlags raw;
  for (size_t i = 0; i < args.size(); ++i) {
    absl::string_view arg = args[i];
    if (arg == "--help" || arg == "-h") {
      raw.action = CommandLine::Action::kHelp;
      return raw;
    }
    if (arg == "--version") {
      raw.action = CommandLine::Action::kVersion;
      return raw;
    }
    if (arg == "--check-config" || arg == "--plan") {
      raw.action = arg == "--plan" ? CommandLine::Action::kPlan : CommandLine::Action::kCheckConfig;
      continue;
    }
    if (arg == "--hash-token") {
      raw.action = CommandLine::Action::kHashToken;
      return raw;
    }
    const bool is_flag = absl::ConsumePrefix(&arg, "--");
    const std::pair<std::string, std::string> parts = absl::StrSplit(arg, absl::MaxSplits('=', 1));
    const std::string& name = parts.first;
    if (!is_flag || (name != "config" && FindFlag(name) == nullptr)) {
      return absl::InvalidArgumentError(
          absl::StrCat(args[i], ": unknown flag, expected one that --help lists"));
    }
    if (name.size() < arg.size()) {
      raw.values[name] = parts.second;
    } else if (i + 1 < args.size()) {
      raw.values[name] = args[++i];
    } else {
      return absl::InvalidArgumentError(absl::StrCat("--", name, ": expected a value after it"));
    }
  }
  return raw;
}

// Option values from the weakest source to the strongest, each checked as it comes.
class Settings {
 public:
  Settings() {
    for (const Flag& flag : kFlags) {
      line_.settings.push_back({.name = flag.name, .value = flag.fallback, .origin = "default"});
    }
  }
  CommandLine& line() { return line_; }

  absl::Status Set(const Flag& flag, std::string_view value, const std::string& origin) {
    const absl::Status status = flag.set(value, line_.options);
    if (!status.ok()) {
      return absl::InvalidArgumentError(absl::StrCat(origin, ": ", status.message()));
    }
    line_.settings[static_cast<size_t>(&flag - kFlags)] = {flag.name, std::string(value), origin};
    return absl::OkStatus();
  }

  absl::Status ReadFile(const std::string& path) {
    std::ifstream file(path);
    std::string line;
    for (int number = 1; std::getline(file, line); ++number) {
      const absl::string_view text = absl::StripAsciiWhitespace(line);
      if (text.empty() || text[0] == '#') continue;
      if (absl::Status status = ReadLine(text, absl::StrCat(path, ":", number)); !status.ok()) {
        return status;
      }
    }
    if (!file.eof()) {
      return absl::InvalidArgumentError(absl::StrCat("--config: cannot read '", path, "'"));
    }
    return absl::OkStatus();
  }

 private:
  absl::Status ReadLine(absl::string_view text, const std::string& where) {
    const std::vector<absl::string_view> parts = absl::StrSplit(text, absl::MaxSplits('=', 1));
    const std::string name(absl::StripAsciiWhitespace(parts[0]));
    const Flag* flag = FindFlag(name);
    if (flag == nullptr) {
      return absl::InvalidArgumentError(absl::StrCat(
          where, ": ", name, ": unknown name, expected a flag of --help without its dashes"));
    }
    if (parts.size() < 2) {
      return absl::InvalidArgumentError(absl::StrCat(where, ": ", name, ": expected name = value"));
    }
    const absl::string_view value = absl::StripAsciiWhitespace(parts[1]);
    return Set(*flag, {value.data(), value.size()}, absl::StrCat(where, ": ", name));
  }

  CommandLine line_;
};

}  // namespace

absl::StatusOr<CommandLine> ParseCommandLine(std::span<const std::string> args,
                                             const EnvLookup& env) {
  absl::StatusOr<RawFlags> raw = SplitFlags(args);
  if (!raw.ok()) return raw.status();
  Settings settings;
  settings.line().action = raw->action;
  if (raw->action == CommandLine::Action::kHelp || raw->action == CommandLine::Action::kVersion ||
      raw->action == CommandLine::Action::kHashToken) {
    return settings.line();
  }
  const auto config = raw->values.find("config");
  const std::optional<std::string> path =
      config != raw->values.end() ? config->second : env("OVQ_CONFIG");
  if (path.has_value()) {
    if (absl::Status status = settings.ReadFile(*path); !status.ok()) return status;
  }
  for (const Flag& flag : kFlags) {
    const std::string name = EnvName(flag.name);
    const std::optional<std::string> value = env(name);
    if (!value.has_value()) continue;
    if (absl::Status status = settings.Set(flag, *value, name); !status.ok()) return status;
  }
  for (const auto& [name, value] : raw->values) {
    if (name == "config") continue;
    absl::Status status = settings.Set(*FindFlag(name), value, absl::StrCat("--", name));
    if (!status.ok()) return status;
  }
  const Options& options = settings.line().options;
  if (options.model.empty()) {
    return absl::InvalidArgumentError("--model: expected a model folder, got none");
  }
  if (absl::Status status = CheckSecurityOptions(options); !status.ok()) return status;
  if (raw->action == CommandLine::Action::kPlan && !options.state_memory_bytes.has_value()) {
    return absl::InvalidArgumentError(
        "--plan: expected --state-memory, the memory to plan for, got none");
  }
  for (const int32_t cap : options.plan_slot_caps) {
    if (cap <= options.max_slot_cap) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("--plan-centroids: expected at most --max-centroids, ", options.max_slot_cap,
                     ", got ", cap));
  }
  return settings.line();
}

// What the flag takes, in the words of its own error: one place says the range. "" for any text.
std::string Takes(const Flag& flag) {
  constexpr absl::string_view kNothing = "?";
  Options scratch;
  const absl::Status refused = flag.set({kNothing.data(), kNothing.size()}, scratch);
  absl::string_view what = refused.message();
  absl::ConsumePrefix(&what, "expected ");
  what = what.substr(0, what.rfind(", got "));
  return refused.ok() ? "" : absl::StrCat(what, "; ");
}

std::string HelpText() {
  std::string text =
      "ovq-server: serves language models with bounded memory over gRPC.\n\n"
      "usage: ovq-server --model FOLDER [flags]     (--name value or --name=value)\n\n";
  for (const Flag& flag : kFlags) {
    absl::StrAppendFormat(&text, "  --%s %s\n      %s\n      %sdefault: %s; environment: %s\n",
                          flag.name, flag.value, flag.help, Takes(flag), flag.fallback,
                          EnvName(flag.name));
  }
  absl::StrAppend(
      &text,
      "  --config FILE\n"
      "      lines 'name = value' with the flags' names, '#' begins a comment line\n"
      "      default: none; environment: OVQ_CONFIG\n"
      "  --check-config\n"
      "      checks options, model folder and credentials without loading the weights, prints "
      "every\n"
      "      option with its value and where it comes from, and ends\n"
      "  --plan\n"
      "      prints how many sessions fit in --state-memory, exactly, for each cap of\n"
      "      --plan-centroids and each length of --plan-tokens, and ends; needs neither the\n"
      "      weights nor the device\n"
      "  --hash-token\n"
      "      prints the SHA-256 of the token on stdin, for the file of --tenants\n"
      "  --help, --version\n\n"
      "Flags win over the environment, the environment over the file, the file over the defaults.\n"
      "Sizes: 512M, 8G, 1.5GiB (powers of 1024). Durations: 250ms, 30s, 5m, 1h30m.\n"
      "SIGTERM or SIGINT drains and exits with 0; a second one exits at once.\n"
      "Exit codes: 0 stopped by a signal, 1 failed to start, 2 bad options.\n");
  return text;
}

}  // namespace ovq
