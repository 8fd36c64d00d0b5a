#include "clients/load/options.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "clients/load/option_values.h"

namespace ovq::load {
namespace {

constexpr int64_t kMaxInputTokens = int64_t{1} << 24;
constexpr int64_t kMaxOutputTokens = int64_t{1} << 20;
constexpr uint64_t kMaxRequests = 10'000'000;

using Value = absl::string_view;

// value_name is null for a switch. Within help a newline starts a line of its own.
struct Flag {
  const char* name;
  const char* value_name;
  const char* help;
  absl::Status (*set)(Options&, Value);
};

absl::Status Set(bool& out) {
  out = true;
  return absl::OkStatus();
}

absl::Status SetTarget(Options& o, Value v) {
  const size_t colon = v.rfind(':');
  uint64_t port = 0;
  if (colon == Value::npos || colon == 0 || !absl::SimpleAtoi(v.substr(colon + 1), &port) ||
      port < 1 || port > 65535) {
    return Expected("HOST:PORT with a port from 1 to 65535", v);
  }
  o.connect.target = std::string(v);
  return absl::OkStatus();
}

absl::Status SetArrivals(Options& o, Value v) {
  if (v == "constant") {
    o.arrivals = ArrivalKind::kConstant;
  } else if (v == "poisson") {
    o.arrivals = ArrivalKind::kPoisson;
  } else if (v == "gamma") {
    o.arrivals = ArrivalKind::kGamma;
  } else {
    return Expected("constant, poisson or gamma", v);
  }
  return absl::OkStatus();
}

absl::Status SetLengths(Value v, int64_t limit, LengthDistribution& out) {
  absl::StatusOr<LengthDistribution> lengths = LengthDistribution::Parse(v, limit);
  if (lengths.ok()) out = *lengths;
  return lengths.status();
}

absl::Status SetGoodput(Options& o, Value v) {
  absl::StatusOr<Goodput> goodput = Goodput::Parse(v);
  if (goodput.ok()) o.goodput = *goodput;
  return goodput.status();
}

constexpr Flag kConnectionFlags[] = {
    {"target", "HOST:PORT", "the server; default 127.0.0.1:50051",
     [](Options& o, Value v) { return SetTarget(o, v); }},
    {"connections", "N", "TCP connections, used in turn; 1 to 256, default 1",
     [](Options& o, Value v) { return SetInteger(v, 1, 256, o.connect.connections); }},
    {"tls-ca", "FILE",
     "PEM certificates that the server's must go back to; turns TLS on; default: plain TCP,\n"
     "with --tls-cert the system's",
     [](Options& o, Value v) { return SetText(v, "a file", o.connect.tls_ca); }},
    {"tls-cert", "FILE", "PEM certificate chain of this client; turns TLS on; default none",
     [](Options& o, Value v) { return SetText(v, "a file", o.connect.tls_cert); }},
    {"tls-key", "FILE", "PEM key of --tls-cert; default none",
     [](Options& o, Value v) { return SetText(v, "a file", o.connect.tls_key); }},
    {"token-file", "FILE", "bearer token, sent with every call; default none",
     [](Options& o, Value v) { return SetText(v, "a file", o.connect.token_file); }},
};

constexpr Flag kArrivalFlags[] = {
    {"concurrency", "N",
     "closed loop: so many users, each with one request at a time; 1 to 100000, default 1.\n"
     "With --rate or --trace: most requests in flight, later ones wait here; default 4096",
     [](Options& o, Value v) { return SetInteger(v, 1, 100'000, o.concurrency); }},
    {"rate", "R", "open loop: requests a second (with --turns: conversations); 0.001 to 1000000",
     [](Options& o, Value v) { return SetNumber(v, 0.001, 1e6, o.rate); }},
    {"arrivals", "KIND", "of --rate: constant, poisson or gamma; default poisson",
     [](Options& o, Value v) { return SetArrivals(o, v); }},
    {"burstiness", "B",
     "of --arrivals gamma: the shape of the gaps; 1 is poisson, less is burstier, more is\n"
     "more even; 0.01 to 1000, default 1",
     [](Options& o, Value v) { return SetNumber(v, 0.01, 1000, o.burstiness); }},
    {"ramp-up", "DURATION",
     "users or rate grow linearly to their full number in this time; 0s to 24h, default 0s",
     [](Options& o, Value v) {
       return SetDuration(v, absl::ZeroDuration(), absl::Hours(24), o.ramp_up);
     }},
    {"trace", "FILE",
     "open loop: one JSON object a line with timestamp_s (seconds) or timestamp (milliseconds),\n"
     "input_length, output_length and perhaps session; default none",
     [](Options& o, Value v) { return SetText(v, "a file", o.trace); }},
    {"trace-speed", "X", "play the trace so many times as fast; 0.001 to 1000, default 1",
     [](Options& o, Value v) { return SetNumber(v, 0.001, 1000, o.trace_speed); }},
    {"sweep", nullptr,
     "one run after another, each with more users (or rate), until throughput saturates or\n"
     "--goodput breaks; starts at --concurrency (or --rate); --requests and --duration are of\n"
     "each level",
     [](Options& o, Value) { return Set(o.sweep.on); }},
    {"sweep-levels", "N", "most levels of a sweep; 1 to 100, default 10",
     [](Options& o, Value v) { return SetInteger(v, 1, 100, o.sweep.max_levels); }},
    {"sweep-factor", "X", "load of a level over the one before; 1.05 to 100, default 2",
     [](Options& o, Value v) { return SetNumber(v, 1.05, 100, o.sweep.factor); }},
    {"sweep-gain", "SHARE",
     "a level whose output throughput is not above the best one's by this share has saturated;\n"
     "0 to 1, default 0.05",
     [](Options& o, Value v) { return SetNumber(v, 0, 1, o.sweep.min_gain); }},
    {"sweep-good", "SHARE",
     "share of requests that must be good by --goodput; 0 to 1, default 0.99",
     [](Options& o, Value v) { return SetNumber(v, 0, 1, o.sweep.min_good); }},
};

constexpr Flag kWorkFlags[] = {
    {"input-length", "LENGTH", "tokens of a prompt (of a turn's); LENGTH below; default 128",
     [](Options& o, Value v) { return SetLengths(v, kMaxInputTokens, o.input_length); }},
    {"output-length", "LENGTH", "tokens of an answer, exactly; LENGTH below; default 64",
     [](Options& o, Value v) { return SetLengths(v, kMaxOutputTokens, o.output_length); }},
    {"turns", "N", "more than 1: sessions of so many turns each; 1 to 100000, default 1",
     [](Options& o, Value v) { return SetInteger(v, 1, 100'000, o.turns); }},
    {"think-time", "DURATION",
     "from the end of an answer to the session's next turn; 0s to 24h, default 0s",
     [](Options& o, Value v) {
       return SetDuration(v, absl::ZeroDuration(), absl::Hours(24), o.think_time);
     }},
    {"prompt-file", "FILE",
     "prompts are slices of this text (UTF-8, at most 16 MiB, tokenized once before the run)\n"
     "of the lengths asked for; default: token ids drawn at random",
     [](Options& o, Value v) { return SetText(v, "a file", o.prompt_file); }},
    {"max-centroids", "N", "dictionary cap of every session; 2 to 4294967295, default the model's",
     [](Options& o, Value v) { return SetInteger(v, 2, 0xffffffffu, o.max_centroids); }},
    {"temperature", "T", "0 is greedy; 0 to 100, default the server's (1)",
     [](Options& o, Value v) { return SetNumber(v, 0, 100, o.temperature); }},
    {"seed", "N", "of arrivals, lengths, prompts and sampling; 0 to 2^64-1, default 1",
     [](Options& o, Value v) { return SetInteger(v, 0, ~uint64_t{0}, o.seed); }},
};

constexpr Flag kBoundFlags[] = {
    {"requests", "N", "most requests; 1 to 10000000, default 1000, of a trace all its lines",
     [](Options& o, Value v) { return SetInteger(v, 1, kMaxRequests, o.requests); }},
    {"duration", "DURATION",
     "no request starts after this; 1ms to 720h, default 60s, of a trace a minute after its end",
     [](Options& o, Value v) {
       return SetDuration(v, absl::Milliseconds(1), absl::Hours(720), o.duration);
     }},
    {"warmup", "N", "requests before the run that do not count; 0 to 100000, default 0",
     [](Options& o, Value v) { return SetInteger(v, 0, 100'000, o.warmup); }},
    {"timeout", "DURATION", "deadline of every call; 1ms to 24h, default 10m",
     [](Options& o, Value v) {
       return SetDuration(v, absl::Milliseconds(1), absl::Hours(24), o.timeout);
     }},
    {"grace", "DURATION",
     "requests that run at the end get so long to finish, then they are cancelled; 0s to 24h,\n"
     "default 30s (2s at most after Ctrl-C)",
     [](Options& o, Value v) {
       return SetDuration(v, absl::ZeroDuration(), absl::Hours(24), o.grace);
     }},
};

constexpr Flag kReportFlags[] = {
    {"goodput", "BOUNDS",
     "count requests within all of these as good: ttft:MS,tpot:MS,e2e:MS (milliseconds above 0,\n"
     "any of them); default none",
     [](Options& o, Value v) { return SetGoodput(o, v); }},
    {"output-json", "FILE", "figures with the keys of `vllm bench serve`; default none",
     [](Options& o, Value v) { return SetText(v, "a file", o.output.json); }},
    {"detailed", nullptr, "every request's figures in --output-json, too",
     [](Options& o, Value) { return Set(o.output.detailed); }},
    {"output-csv", "FILE", "a row for every request; default none",
     [](Options& o, Value v) { return SetText(v, "a file", o.output.csv); }},
    {"output-html", "FILE", "a page with plots, complete in itself; default none",
     [](Options& o, Value v) { return SetText(v, "a file", o.output.html); }},
    {"quiet", nullptr, "no progress on stderr",
     [](Options& o, Value) { return Set(o.output.quiet); }},
    {"allow-errors", nullptr, "exit status 0 also when requests failed",
     [](Options& o, Value) { return Set(o.allow_errors); }},
    {"help", nullptr, "this text", [](Options& o, Value) { return Set(o.help); }},
};

struct FlagGroup {
  const char* title;
  std::span<const Flag> flags;
};
constexpr FlagGroup kGroups[] = {{"Connection", kConnectionFlags},
                                 {"Arrivals", kArrivalFlags},
                                 {"Work", kWorkFlags},
                                 {"Bounds", kBoundFlags},
                                 {"Reports", kReportFlags}};

const Flag* FindFlag(Value name) {
  for (const FlagGroup& group : kGroups) {
    for (const Flag& flag : group.flags) {
      if (name == flag.name) return &flag;
    }
  }
  return nullptr;
}

// What flags say together.
absl::Status CheckOptions(const Options& o, const std::vector<Value>& given) {
  const auto has = [&](Value name) {
    return std::find(given.begin(), given.end(), name) != given.end();
  };
  const auto wrong = [](Value text) { return absl::InvalidArgumentError(text); };
  if (o.connect.tls_cert.empty() != o.connect.tls_key.empty()) {
    return wrong("give --tls-cert and --tls-key together");
  }
  if (o.rate && !o.trace.empty()) return wrong("give one of --rate and --trace");
  for (Value name : {"arrivals", "burstiness"}) {
    if (has(name) && !o.rate) return wrong(absl::StrCat("--", name, " needs --rate"));
  }
  if (has("burstiness") && o.arrivals != ArrivalKind::kGamma) {
    return wrong("--burstiness needs --arrivals gamma");
  }
  if (has("trace-speed") && o.trace.empty()) return wrong("--trace-speed needs --trace");
  for (Value name : {"sweep", "ramp-up", "turns", "input-length", "output-length"}) {
    if (has(name) && !o.trace.empty()) {
      return wrong(absl::StrCat("--", name, " does not go with --trace"));
    }
  }
  for (Value name : {"sweep-levels", "sweep-factor", "sweep-gain", "sweep-good"}) {
    if (has(name) && !o.sweep.on) return wrong(absl::StrCat("--", name, " needs --sweep"));
  }
  if (has("sweep-good") && !o.goodput) return wrong("--sweep-good needs --goodput");
  if (has("think-time") && o.turns == 1) return wrong("--think-time needs --turns above 1");
  if (o.output.detailed && o.output.json.empty()) return wrong("--detailed needs --output-json");
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<Options> ParseOptions(std::span<const std::string> args) {
  Options options;
  std::vector<Value> given;
  for (size_t i = 0; i < args.size(); ++i) {
    const Value argument = args[i];
    if (argument.substr(0, 2) != "--") {
      return absl::InvalidArgumentError(absl::StrCat("unexpected argument '", argument, "'"));
    }
    const size_t equals = argument.find('=');
    const Flag* flag = FindFlag(argument.substr(2, equals == Value::npos ? equals : equals - 2));
    if (flag == nullptr) {
      return absl::InvalidArgumentError(absl::StrCat("unknown flag ", argument.substr(0, equals)));
    }
    Value value;
    if (equals != Value::npos) {
      if (flag->value_name == nullptr) {
        return absl::InvalidArgumentError(absl::StrCat("--", flag->name, " takes no value"));
      }
      value = argument.substr(equals + 1);
    } else if (flag->value_name != nullptr) {
      if (++i == args.size()) {
        return absl::InvalidArgumentError(absl::StrCat("--", flag->name, " needs a value"));
      }
      value = args[i];
    }
    if (const absl::Status status = flag->set(options, value); !status.ok()) {
      return absl::InvalidArgumentError(absl::StrCat("--", flag->name, ": ", status.message()));
    }
    given.emplace_back(flag->name);
  }
  if (options.help) return options;
  if (const absl::Status status = CheckOptions(options, given); !status.ok()) return status;
  return options;
}

std::string HelpText() {
  std::string text =
      "Usage: ovq-load [flags]\n"
      "Loads an ovq-server and reports latencies and throughput: a table on stdout, progress on\n"
      "stderr. Without --rate or --trace a closed loop of --concurrency users.\n"
      "LENGTH is N, uniform:A-B or lognormal:MEAN:SIGMA[:A-B] (clipped to A-B, by default to\n"
      "1-10*MEAN); prompts of 1 to 16777216 tokens, answers of 1 to 1048576.\n"
      "DURATION is like 250ms, 30s or 1h30m. What the figures mean: docs/load-testing.md.\n"
      "Exit status: 0 all requests completed, 1 some failed or nothing could be measured,\n"
      "2 bad usage.\n";
  for (const FlagGroup& group : kGroups) {
    absl::StrAppend(&text, "\n", group.title, "\n");
    for (const Flag& flag : group.flags) {
      std::string left = absl::StrCat("--", flag.name);
      if (flag.value_name != nullptr) absl::StrAppend(&left, " ", flag.value_name);
      for (const Value line : absl::StrSplit(flag.help, '\n')) {
        absl::StrAppendFormat(&text, "  %-24s %s\n", left, line);
        left.clear();
      }
    }
  }
  return text;
}

}  // namespace ovq::load
