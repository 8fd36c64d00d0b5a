#include "clients/load/options.h"

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace ovq::load {
namespace {

constexpr int64_t kMaxInputTokens = int64_t{1} << 24;
constexpr int64_t kMaxOutputTokens = int64_t{1} << 20;
constexpr absl::Duration kDay = absl::Hours(24);

FlagValue Lengths(LengthDistribution& out, int64_t limit, const std::string& fallback) {
  return Parsed(out, fallback,
                [limit](absl::string_view v) { return LengthDistribution::Parse(v, limit); });
}

void AddServer(Flags& flags, Options& o) {
  flags.Heading("Connection");
  clients::AddConnection(flags, o.connect);
  flags.Add("connections", "N", Number(o.connections, 1, 256), "TCP connections, used in turn");
}

void AddArrivals(Flags& flags, Options& o) {
  flags.Heading("Arrivals");
  flags.Add("concurrency", "N", Number(o.concurrency, 1, 100'000),
            "closed loop: so many users, each with one request at a time.\n"
            "With --rate or --trace: most requests in flight, later ones wait here",
            "1; with --rate or --trace 4096");
  flags.Add("rate", "R", Number(o.rate, 0.001, 1e6),
            "open loop: requests a second (with --turns: conversations)");
  flags.Add("arrivals", "KIND", Choice(o.plan.arrivals.kind, kArrivalKinds), "of --rate");
  flags.Add("burstiness", "B", Number(o.plan.arrivals.burstiness, 0.01, 1000),
            "of --arrivals gamma: the shape of the gaps; 1 is poisson, less is burstier, more is\n"
            "more even");
  flags.Add("ramp-up", "DURATION", Duration(o.plan.arrivals.ramp, absl::ZeroDuration(), kDay),
            "users or rate grow linearly to their full number in this time");
  flags.Add("trace", "FILE", Text(o.trace, "a file"),
            "open loop: one JSON object a line with timestamp_s (seconds) or timestamp\n"
            "(milliseconds), input_length, output_length and perhaps session");
  flags.Add("trace-speed", "X", Number(o.work.trace_speed, 0.001, 1000),
            "play the trace so many times as fast");
  flags.AddSwitch(
      "sweep", o.sweep.on,
      "one run after another, each with more users (or rate), until throughput saturates or\n"
      "--goodput breaks; starts at --concurrency (or --rate); --requests and --duration are of\n"
      "each level");
  flags.Add("sweep-levels", "N", Number(o.sweep.max_levels, 1, 100), "most levels of a sweep");
  flags.Add("sweep-factor", "X", Number(o.sweep.factor, 1.05, 100),
            "load of a level over the one before");
  flags.Add("sweep-gain", "SHARE", Number(o.sweep.min_gain, 0, 1),
            "a level whose output throughput is not above the best one's by this share has\n"
            "saturated");
  flags.Add("sweep-time", "DURATION", Duration(o.sweep.min_time, absl::ZeroDuration(), kDay),
            "a level that lasts less tells nothing, and the sweep ends with it: more --requests");
  flags.Add("sweep-good", "SHARE", Number(o.sweep.min_good, 0, 1),
            "share of requests that must be good by --goodput");
}

void AddWork(Flags& flags, Options& o) {
  flags.Heading("Work");
  flags.Add("input-length", "LENGTH", Lengths(o.work.input, kMaxInputTokens, "128"),
            "tokens of a prompt (of a turn's); LENGTH above");
  flags.Add("output-length", "LENGTH", Lengths(o.work.output, kMaxOutputTokens, "64"),
            "tokens of an answer, exactly; LENGTH above");
  flags.Add("turns", "N", Number(o.work.turns, 1, 100'000),
            "more than 1: sessions of so many turns each");
  flags.Add("think-time", "DURATION", Duration(o.plan.think_time, absl::ZeroDuration(), kDay),
            "from the end of an answer to the session's next turn");
  flags.Add(
      "outlast", "DURATION", Duration(o.plan.outlast, absl::ZeroDuration(), kDay),
      "of --turns: a turn whose server goes away is sent again when one is back in this time,\n"
      "and every session must be where it was last told to be (server: --session-dir)",
      "0: it has failed");
  flags.Add("prompt-file", "FILE", Text(o.prompt_file, "a file"),
            "prompts are slices of this text (UTF-8, at most 16 MiB, tokenized once before the\n"
            "run) of the lengths asked for",
            "token ids drawn at random");
  flags.Add("max-centroids", "N", Number(o.max_centroids, 2, 0xffffffffu),
            "dictionary cap of every session", "the model's");
  flags.Add("temperature", "T", Number(o.temperature, 0, 100), "0 is greedy", "the server's, 1");
  flags.Add("seed", "N", Number(o.work.seed, 0, ~uint64_t{0}),
            "of arrivals, lengths, prompts and sampling");
}

void AddBounds(Flags& flags, Options& o) {
  flags.Heading("Bounds");
  flags.Add("requests", "N", Number(o.work.max_requests, 1, 10'000'000), "most requests",
            "1000, of a trace all its lines");
  flags.Add("duration", "DURATION", Duration(o.duration, absl::Milliseconds(1), 30 * kDay),
            "no request starts after this", "60s, of a trace a minute after its end");
  flags.Add("warmup", "N", Number(o.warmup, 0, 100'000),
            "requests before the run that do not count");
  flags.Add("timeout", "DURATION", Duration(o.timeout, absl::Milliseconds(1), kDay),
            "deadline of every call");
  flags.Add("grace", "DURATION", Duration(o.plan.grace, absl::ZeroDuration(), kDay),
            "requests that run at the end get so long to finish, then they are cancelled; 2s at\n"
            "most after Ctrl-C");
}

std::string HelpText();

void AddReports(Flags& flags, Options& o) {
  flags.Heading("Reports");
  flags.Add("goodput", "BOUNDS", Parsed(o.goodput, "", Goodput::Parse),
            "count requests within all of these as good: ttft:MS,tpot:MS,e2e:MS (milliseconds\n"
            "above 0, any of them)");
  flags.Add("output-json", "FILE", Text(o.output.json, "a file"),
            "figures with the keys of `vllm bench serve`");
  flags.AddSwitch("detailed", o.output.detailed, "every request's figures in --output-json, too");
  flags.Add("output-csv", "FILE", Text(o.output.csv, "a file"), "a row for every request");
  flags.Add("output-html", "FILE", Text(o.output.html, "a file"),
            "a page with plots, complete in itself");
  flags.AddSwitch("quiet", o.output.quiet, "no progress on stderr");
  flags.AddSwitch("allow-errors", o.allow_errors, "exit status 0 also when requests failed");
  clients::AddHelpAndVersion(flags, kProgram, HelpText);
}

Flags Declare(Options& options) {
  Flags flags;
  AddServer(flags, options);
  AddArrivals(flags, options);
  AddWork(flags, options);
  AddBounds(flags, options);
  AddReports(flags, options);
  return flags;
}

std::string HelpText() {
  Options options;
  return absl::StrCat(
      "Usage: ovq-load [flags]\n"
      "Loads an ovq-server and reports latencies and throughput: a table on stdout, progress on\n"
      "stderr. Without --rate or --trace a closed loop of --concurrency users.\n"
      "LENGTH is N, uniform:A-B or lognormal:MEAN:SIGMA[:A-B] (clipped to A-B, by default to\n"
      "1-10*MEAN); prompts of 1 to 16777216 tokens, answers of 1 to 1048576.\n"
      "DURATION is like 250ms, 30s or 1h30m. What the figures mean: docs/load-testing.md.\n"
      "Exit status: 0 all requests completed, 1 some failed or nothing could be measured,\n"
      "2 bad usage, 130 interrupted (with a report of what was).\n",
      Declare(options).Help());
}

// Checks the flags against each other; reports the first error.
absl::Status CheckTogether(const Options& o, const Flags& flags) {
  const bool traced = !o.trace.empty();
  absl::Status status = clients::CheckConnection(o.connect);
  if (status.ok() && o.rate && traced) {
    status = absl::InvalidArgumentError("give one of --rate and --trace");
  }
  const auto check = [&](std::initializer_list<const char*> names, bool kept, const char* wrong) {
    for (const char* name : names) {
      if (!status.ok() || kept || !flags.given(name)) continue;
      status = absl::InvalidArgumentError(absl::StrCat("--", name, " ", wrong));
    }
  };
  check({"arrivals", "burstiness"}, o.rate.has_value(), "needs --rate");
  check({"burstiness"}, o.plan.arrivals.kind == ArrivalKind::kGamma, "needs --arrivals gamma");
  check({"trace-speed"}, traced, "needs --trace");
  check({"sweep", "ramp-up", "turns", "input-length", "output-length"}, !traced,
        "does not go with --trace");
  check({"sweep-levels", "sweep-factor", "sweep-gain", "sweep-good", "sweep-time"}, o.sweep.on,
        "needs --sweep");
  check({"sweep-good"}, o.goodput.has_value(), "needs --goodput");
  check({"think-time", "outlast"}, o.work.turns > 1, "needs --turns above 1");
  check({"detailed"}, !o.output.json.empty(), "needs --output-json");
  return status;
}

}  // namespace

absl::StatusOr<Options> ParseOptions(std::span<const std::string> args) {
  Options options;
  Flags flags = Declare(options);
  RETURN_IF_ERROR(flags.Read(args));
  RETURN_IF_ERROR(CheckTogether(options, flags));
  options.settings = flags.settings();
  return options;
}

}  // namespace ovq::load
