#include "server/options.h"

#include <arpa/inet.h>

#include <algorithm>
#include <limits>
#include <set>
#include <tuple>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/status_macros.h"
#include "kernels/mixers/common/slots.h"
#include "model/cache_policy.h"
#include "server/engine/common/limits.h"
#include "server/redis/redis_options.h"

namespace ovq::server {
namespace {

constexpr int64_t kMaxCount = std::numeric_limits<int32_t>::max();

// Accepts an address, or '' for none.
FlagValue OptionalAddress(std::string& to) {
  FlagValue value = Address(to, 0);
  value.set = [&to, address = value.set](std::string_view text) {
    if (!text.empty()) return address(text);
    to.clear();
    return absl::OkStatus();
  };
  return value;
}

// Names of the model: ids of OpenAI's API, as words of paths, too.
FlagValue ModelNames(std::vector<std::string>& to) {
  constexpr size_t kMost = 16, kLongest = 256;
  const std::string takes =
      absl::StrCat("up to ", kMost, " different names with commas between, each 1 to ", kLongest,
                   " characters A-Z a-z 0-9 . _ : @ - and, within, /");
  const auto is_name = [](absl::string_view name) {
    const auto fits = [](char c) {
      return absl::ascii_isalnum(c) || absl::StrContains("._:@-/", c);
    };
    return !name.empty() && name.size() <= kLongest && std::ranges::all_of(name, fits) &&
           name.front() != '/' && name.back() != '/';
  };
  const auto parse = [=](std::string_view text) -> std::optional<std::vector<std::string>> {
    const std::vector<std::string> names = absl::StrSplit(AbslView(text), ',');
    const std::set<std::string> different(names.begin(), names.end());
    if (names.size() > kMost || different.size() < names.size()) return std::nullopt;
    if (!std::ranges::all_of(names, is_name)) return std::nullopt;
    return names;
  };
  return ReadTo([&to](const auto& names) { to = names; }, takes, parse);
}

void AddServing(Flags& flags, Options& o) {
  flags.Add("model", "PATH", Text(o.model, "a folder or a GGUF file"),
            "model folder (config.json, *.safetensors, tokenizer) or GGUF file", "required");
  flags.Add("served-model-name", "NAME[,NAME]", ModelNames(o.served_model_names),
            "names by which requests may ask for the model; answers and metrics show the first",
            "the folder's or file's, or ORG/NAME in the cache of the Hugging Face hub");
  flags.Add("chat-template", "FILE", Text(o.chat_template, "a file"),
            "Jinja file with the model's chat template (docs/model-format.md)", "the folder's");
  flags.Add("listen", "HOST:PORT", Address(o.listen.address, 0),
            "gRPC address; port 0 takes any free one");
  flags.Add(
      "http-listen", "HOST:PORT", OptionalAddress(o.http.address),
      "address of the HTTP front (docs/http.md): OpenAI's API, sessions as JSON and, at /, a\n"
      "console for browsers; '' for none, port 0 for any free one",
      "none");
  FlagValue metrics = OptionalAddress(o.metrics_address);
  flags.Add("metrics-address", "HOST:PORT", std::move(metrics),
            "Prometheus endpoint; '' for none, port 0 for any free one");
  flags.Add("device", "NAME",
            Choice(o.device, {{"cpu", kernels::Device::kCpu}, {"cuda", kernels::Device::kCuda}}),
            "cuda needs a build with CUDA and a GPU of compute capability 8.0 or later");
  flags.Add(
      "threads", "N", Number(o.threads, 0, 1024),
      "CPU threads; 0: as many as this process may keep busy, by its affinity mask and by the\n"
      "CPU quota of its control groups");
}

void AddMemory(Flags& flags, Options& o) {
  flags.Add("state-memory", "SIZE", Size(o.state_memory_bytes),
            "budget for all sessions' states, in the memory of the device (of the GPU with cuda)",
            "half of what is free after the weights");
  flags.Add("checkpoint-memory", "SIZE", SizeOrZero(o.checkpoint_memory_bytes),
            "budget of the host's memory for copies of sessions' earlier states, from which\n"
            "RewindSession goes back; with 0 it reads a session's tokens from the first one again",
            "an eighth of --state-memory");
  flags.Add(
      "request-memory", "SIZE", Size(o.request_memory_bytes),
      "budget of the host's memory for the messages of calls and their answers; a client may\n"
      "have half of what others leave",
      "an eighth of the memory that the process may use");
  flags.Add(
      "prefix-memory", "SIZE", SizeOrZero(o.prefix_memory_bytes),
      "budget of the host's memory for states behind prompts and answers (of conversations, and\n"
      "of others what is marked as cacheable); with 0 every prompt is read",
      "an eighth of --state-memory");
  flags.Add(
      "constraint-memory", "SIZE", Size(o.engine.constraint_memory_bytes),
      "budget of the host's memory for masks of constrained answers (JSON Schema, grammars, ...),\n"
      "and as much again for compiled constraints; a client may have half of what others leave");
}

void AddSharedStorage(Flags& flags, Options& o) {
  const std::string store_forms = absl::StrCat(redis::kRedisUrlForm, " or ", s3::kS3UrlForm);
  FlagValue store = {.takes = store_forms, .fallback = "", .set = {}};
  store.set = [&o, store_forms](std::string_view text) -> absl::Status {
    o.session_store.reset();
    o.session_bucket.reset();
    if (text.starts_with("s3://")) {
      ASSIGN_OR_RETURN(o.session_bucket, s3::ParseS3Url(text));
    } else if (text.starts_with("redis://") || text.starts_with("rediss://")) {
      ASSIGN_OR_RETURN(o.session_store, redis::ParseRedisUrl(text));
    } else {
      // The text is not repeated, because it may hold a password.
      return absl::InvalidArgumentError(
          absl::StrCat("expected ", store_forms, ", got a text that begins otherwise"));
    }
    return absl::OkStatus();
  };
  flags.Add(
      "session-store", "URL", std::move(store),
      "sessions are in this Redis or Valkey server, or in this bucket of an S3-compatible object\n"
      "store, instead, which servers on several machines may share (docs/serving.md); with "
      "rediss://\n"
      "over TLS",
      "none");
  flags.Add("session-store-password-file", "FILE", Text(o.session_store_password_file, "a file"),
            "the password for --session-store redis://, for the server's user alone to read",
            "none");
  FlagValue endpoint = {.takes = s3::kS3EndpointForm, .fallback = "", .set = {}};
  endpoint.set = [&o](std::string_view text) -> absl::Status {
    ASSIGN_OR_RETURN(o.session_store_endpoint, s3::ParseS3Endpoint(text));
    return absl::OkStatus();
  };
  flags.Add("session-store-endpoint", "URL", std::move(endpoint),
            "--session-store s3://: where the object store is; buckets are parts of the path",
            "Amazon S3 in the region");
  FlagValue region = {
      .takes = "a name such as us-east-1", .fallback = o.session_store_region, .set = {}};
  region.set = [&o](std::string_view text) -> absl::Status {
    ASSIGN_OR_RETURN(o.session_store_region, s3::ParseS3Region(text));
    return absl::OkStatus();
  };
  flags.Add("session-store-region", "NAME", std::move(region),
            "--session-store s3://: the bucket's region, which requests are signed for");
  flags.Add("session-store-credentials-file", "FILE",
            Text(o.session_store_credentials_file, "a file"),
            "--session-store s3://: lines 'aws_access_key_id = ID' and 'aws_secret_access_key =\n"
            "SECRET', for the server's user alone to read",
            "none");
  flags.Add("session-store-ca", "FILE", Text(o.session_store_tls.ca, "a file"),
            "--session-store rediss:// or s3:// with https: PEM: who may sign its certificate",
            "the system's authorities");
  flags.Add(
      "session-store-cert", "FILE", Text(o.session_store_tls.cert, "a file"),
      "--session-store rediss://: PEM: this server's certificate for a Redis that asks for one",
      "none");
  flags.Add("session-store-key", "FILE", Text(o.session_store_tls.key, "a file"),
            "PEM key of --session-store-cert, without a passphrase", "none");
  flags.Add("session-lease", "DURATION",
            Duration(o.session_lease, absl::Seconds(1), absl::Minutes(10)),
            "--session-store: so long after a server was last heard of, others may acquire its "
            "sessions;\n"
            "it is renewed at a third of it",
            absl::FormatDuration(redis::RedisStoreOptions().lease));
  flags.Add("session-store-replicas", "N", Number(o.session_store_replicas, 0, 16),
            "--session-store redis://: how many replicas must have a turn before it is answered",
            "0");
}

void AddSessionStorage(Flags& flags, Options& o) {
  flags.Add(
      "session-dir", "FOLDER", Text(o.session_dir, "a folder"),
      "sessions are on disk here before a call that changed them ends well, and are there again\n"
      "after a restart; made if it is missing. Servers on one machine may share it",
      "none: sessions end with the server");
  flags.Add(
      "session-sync", "WHEN",
      Choice(o.session_sync_always, {{"always", true}, {"interval", false}}),
      "--session-dir: always: a turn is on the disk itself before it is answered, with one sync;\n"
      "interval: it is with the system, and on the disk within a second, so it outlives the\n"
      "server's process, but not the machine");
  AddSharedStorage(flags, o);
  flags.Add(
      "admission", "HOW", Choice(o.engine.overcommit, {{"reserve", false}, {"overcommit", true}}),
      "reserve: every session has the memory of its cap for as long as it lives; overcommit: idle\n"
      "ones leave --state-memory for --session-dir or --session-store where others need it, the "
      "least\n"
      "recently used first, and come back with their next call");
  flags.Add(
      "imports", "HOW", Choice(o.engine.trust_session_files, {{"replay", false}, {"trust", true}}),
      "of files that no fleet key has signed: replay: ImportSession reads their tokens again;\n"
      "trust: it takes their state, at once. Its numbers are checked, so that none does harm to\n"
      "the server; that they are what its tokens make is trusted: a forged session answers as its\n"
      "maker likes");
  flags.Add(
      "fleet-key-file", "FILE", Text(o.fleet_key_file, "a file"),
      "keys of this server and of those that it trusts (docs/security.md), one a line, each 64 to\n"
      "256 hex digits, as openssl rand -hex 32 prints. The first one signs the states in exported\n"
      "sessions and snapshots; a state that any of them has signed is taken at once",
      "fleet.key in --session-dir, made if it is missing; none without a folder, or with --imports "
      "trust");
}

void AddModelChoices(Flags& flags, Options& o) {
  std::vector<std::pair<std::string, model::CachePolicy>> cache_policies;
  std::string kept =
      "what ovq_attention layers, and full_attention layers without RoPE, keep of their context:\n";
  for (const model::CachePolicy& policy : model::CachePolicies()) {
    cache_policies.emplace_back(policy.name, policy);
    absl::StrAppend(&kept, policy.name, ": ", policy.help, "\n");
  }
  flags.Add(
      "speculate", "HOW",
      Choice(o.engine.speculation,
             {{"off", engine::Speculation::kOff}, {"ngram", engine::Speculation::kNgram}}),
      "of requests that do not say: ngram: tokens are guessed from where a session's last ones\n"
      "stood before, and as many are checked in a step as make answers faster; they are the same");
  flags.Add("tool-parser", "NAME", Choice(o.call_syntax, answers::NamedCalls()),
            "how the model writes calls to tools, where its chat template shows another form or\n"
            "none (none: calls stay text, and tools are refused)",
            "as the chat template writes them");
  flags.Add("memory", "NAME[,NAME]", Choices<model::CachePolicy>(o.cache_policies, cache_policies),
            absl::StrCat(kept,
                         "of several, sessions get the first unless their creation asks for\n"
                         "another; they share the weights"));
  const std::vector<std::pair<std::string, kernels::DType>> dtypes = {
      {"f32", kernels::DType::kF32}, {"bf16", kernels::DType::kBF16}};
  const std::string as_checkpoint = "bf16 for BF16 and quantized checkpoints, else f32";
  std::vector<std::pair<std::string, kernels::DType>> state_dtypes;
  for (const kernels::DType dtype : kernels::AllSlots::kDTypes) {
    state_dtypes.emplace_back(absl::AsciiStrToLower(kernels::DTypeName(dtype)), dtype);
  }
  flags.Add("state-dtype", "TYPE", Choice(o.state_dtype, state_dtypes),
            "keys and values in session states; i8: int8 with a scale for each, half the bytes of\n"
            "bf16; answers differ a little (docs/performance.md)",
            as_checkpoint);
  flags.Add("compute-dtype", "TYPE", Choice(o.compute_dtype, dtypes), "matrix products",
            as_checkpoint);
  flags.Add(
      "weights", "TYPE",
      Choice(o.weights, {{"checkpoint", kernels::WeightType::kAsComputed},
                         {"int8", kernels::WeightType::kInt8}}),
      "int8: weights of products are rounded to int8 when they are loaded, and so are the rows\n"
      "they meet; half the bytes and about twice as fast, answers differ a little\n"
      "(docs/performance.md); checkpoint: as --compute-dtype says");
}

// A GPU needs thousands of tokens to be busy with their products; a CPU is with hundreds, and more
// only take longer.
constexpr int32_t kCpuBatchTokens = 512, kCudaBatchTokens = 4096;
// A step of a few hundred prompt tokens takes a GPU half as long as one of thousands. So long a gap
// between tokens nobody sees who reads them.
constexpr absl::Duration kCudaLeastStepTime = absl::Milliseconds(25);

void AddBounds(Flags& flags, Options& o) {
  flags.Add("max-centroids", "N",
            Number(o.engine.max_slot_cap, kernels::kMinSlotCap, kernels::kMaxSlotCap),
            "largest dictionary cap of a session; lowers the model's own default too");
  flags.Add("max-sessions", "N", Number(o.engine.max_sessions, 1, 1 << 20),
            "live sessions, one-shot requests included");
  flags.Add("max-batch-tokens", "N", Number(o.max_batch_tokens, 1, 1 << 20),
            "tokens computed together in one step",
            absl::StrCat(kCpuBatchTokens, ", and ", kCudaBatchTokens, " with --device cuda"));
  flags.Add(
      "target-step-time", "DURATION",
      Duration(o.engine.target_step_time, absl::Microseconds(100), absl::Minutes(1)),
      "how long a step may take that reads prompts while answers wait: shorter, and tokens come\n"
      "evenly; longer, and prompts are read sooner (docs/operations.md)",
      absl::StrCat("3 times what the answers take alone, or eight if they are fewer; with --device "
                   "cuda at least ",
                   absl::FormatDuration(kCudaLeastStepTime)));
  flags.Add("max-queue", "N", Number(o.engine.max_queue, 0, kMaxCount),
            "requests that may wait for admission");
  flags.Add("max-prompt-tokens", "N", Number(o.engine.max_prompt_tokens, 1, kMaxCount),
            "tokens of one prompt");
  flags.Add("max-context", "N", Number(o.max_context, 1, kMaxCount),
            "positions of a session, for models with full-attention layers only");
  flags.Add("session-ttl", "DURATION",
            Duration(o.engine.session_ttl, absl::Milliseconds(1), engine::kMaxSessionTtl),
            "idle time after which a session is deleted");
  flags.Add("max-session-ttl", "DURATION",
            Duration(o.engine.max_session_ttl, absl::Milliseconds(1), engine::kMaxSessionTtl),
            "the longest such time that a caller may ask for");
  flags.Add("drain-notice", "DURATION",
            Duration(o.drain_notice, absl::ZeroDuration(), absl::Hours(1)),
            "time from SIGTERM or SIGINT, when health says NOT_SERVING, to the drain: calls are\n"
            "still served until balancers have noticed");
  flags.Add(
      "drain-timeout", "DURATION", Duration(o.drain_timeout, absl::ZeroDuration(), absl::Hours(24)),
      "time that running requests get to finish after that; a server that hangs ends 5 s later\n"
      "with exit code 1");
  flags.Add(
      "step-timeout", "DURATION", Duration(o.step_timeout, absl::ZeroDuration(), absl::Hours(24)),
      "a step that takes longer makes health NOT_SERVING until it ends, and systemd's watchdog\n"
      "(WatchdogSec) hears no more; 0: none does");
  flags.Add("max-message-bytes", "SIZE", Size(o.listen.max_message_bytes, kMaxCount + 1),
            "largest message accepted from a client");
}

void AddSecurity(Flags& flags, Options& o) {
  flags.Add("tls-cert", "FILE", Text(o.security.tls.cert, "a file"),
            "PEM certificate of the server with its chain; it and the other TLS files are read\n"
            "again when they change",
            "none: plain text");
  flags.Add("tls-key", "FILE", Text(o.security.tls.key, "a file"),
            "PEM key of --tls-cert, without a passphrase");
  flags.Add("tls-client-ca", "FILE", Text(o.security.tls.client_ca, "a file"),
            "PEM certificates of the authorities whose clients may connect, and no others",
            "none: clients need no certificate");
  flags.Add("tenants", "FILE", Text(o.security.tenants, "a file"),
            "JSON file of tenants, their tokens and limits (docs/security.md); read again when it\n"
            "changes",
            "none: whoever can connect may call");
  flags.Add("insecure-listen", "yes|no", Choice(o.insecure_listen, {{"no", false}, {"yes", true}}),
            "yes: --listen, --http-listen and --metrics-address may be addresses beyond loopback "
            "without --tenants,\n"
            "where whoever reaches them may use the server and read its load");
  flags.Add("admin-listen", "HOST:PORT", Address(o.admin_listen, 0),
            "address of ovq.v1.AdminService; beyond loopback only with --tenants");
  flags.Add("max-streams-per-connection", "N",
            Number(o.listen.max_streams_per_connection, 1, 1 << 20),
            "calls at a time on one connection; a client holds further ones back");
  flags.Add("handshake-timeout", "DURATION",
            Duration(o.listen.handshake_timeout, absl::Milliseconds(1), absl::Hours(1)),
            "time from a connection to the end of its TLS and HTTP/2 handshakes; over HTTP, also\n"
            "for the header of a request");
  flags.Add(
      "http-max-connections", "N", Number(o.http.max_connections, 1, 1 << 20),
      "open connections of the HTTP front; for a further one, that ends which has waited longest\n"
      "for a request; without such, the newest of the address that has most, or the new one\n"
      "if its own address has no fewer");
  flags.Add(
      "http-allowed-hosts", "NAME,NAME,...", Parsed(o.browsers.hosts, "", ParseAllowedHosts),
      "names beside localhost and this machine's loopback addresses that a request's header\n"
      "Host may have, such as host.docker.internal; .NAME also stands for all names below it,\n"
      "*.NAME for those alone, * for any. Without it only an address on loopback without\n"
      "--tenants asks for such names, so that no page of the internet comes in by a name that\n"
      "its owner points here",
      "none");
  flags.Add(
      "http-allowed-origins", "ORIGIN,ORIGIN,...",
      Parsed(o.browsers.origins, "", ParseAllowedOrigins),
      "origins of pages that browsers let use the HTTP front (CORS), such as\n"
      "https://chat.example; * for any: without --tenants, every page that a browser here opens\n"
      "may then use the server, and read and delete sessions",
      "none: pages of this server alone");
  flags.Add("max-connection-idle", "DURATION",
            Duration(o.listen.max_connection_idle, absl::Seconds(1), absl::Hours(24 * 20)),
            "time after which a connection without calls ends", "no end");
}

void AddLog(Flags& flags, Options& o) {
  flags.Add("log-format", "FORMAT", Choice(o.log.format, kLogFormats),
            "how a line looks, on stderr; json: one object a line");
  flags.Add("log-level", "LEVEL", Choice(o.log.level, kLogLevels), "lines below it are left out");
  flags.Add("log-requests", "WHICH", Choice(o.log_requests, kLogRequests),
            "calls that get a line when they end");
  flags.Add("trace-collector", "URL",
            ReadTo([&o](const TraceCollector& collector) { o.trace_collector = collector; },
                   "http[s]://HOST:PORT[/PATH]", ParseTraceCollector),
            "where spans of calls go: OTLP over HTTP in JSON, by default to the path /v1/traces;\n"
            "of calls whose caller's trace is sampled, and of those that begin one",
            "none: no spans");
  flags.Add("trace-collector-ca", "FILE", Text(o.security.trace_collector_ca, "a file"),
            "PEM: who may sign the certificate of a collector with https",
            "the system's authorities");
  flags.Add("log-rate", "N", Number(o.log.lines_per_second, 1, 1'000'000),
            "lines a second of one kind and level, twice as many at once; others are counted only");
}

void AddActions(Flags& flags, CommandLine& line) {
  Options& o = line.options;
  using Action = CommandLine::Action;
  const auto act = [&line](Action action) { return [&line, action] { line.action = action; }; };
  flags.Add("plan-centroids", "N,N,...",
            Integers(o.plan_slot_caps, kernels::kMinSlotCap, kernels::kMaxSlotCap),
            "--plan: dictionary caps to plan for", "the model's default cap");
  flags.Add("plan-tokens", "N,N,...", Integers(o.plan_tokens, 1, int64_t{1} << 48),
            "--plan: lengths of sessions to plan for");
  flags.AddFile("config", "lines 'name = value' with the flags' names, '#' begins a comment line");
  flags.AddSwitch(
      "check-config", act(Action::kCheckConfig),
      "checks options, model folder and credentials without loading the weights, prints\n"
      "every option with its value and where it comes from, and ends");
  flags.AddSwitch(
      "plan", act(Action::kPlan),
      "prints how many sessions fit in --state-memory, exactly, for each cap of\n"
      "--plan-centroids and each length of --plan-tokens, and the bytes of the weights,\n"
      "and ends; needs neither the weights nor the device");
  flags.AddEnd("hash-token", act(Action::kHashToken),
               "prints the SHA-256 of the token on stdin, for the file of --tenants");
  flags.AddEnd("help", act(Action::kHelp), "this text; also -h");
  flags.AddEnd("version", act(Action::kVersion), "the program's name and version");
}

Flags Declare(CommandLine& line) {
  Flags flags("OVQ_");
  AddServing(flags, line.options);
  AddMemory(flags, line.options);
  AddSessionStorage(flags, line.options);
  AddModelChoices(flags, line.options);
  AddBounds(flags, line.options);
  AddSecurity(flags, line.options);
  AddLog(flags, line.options);
  AddActions(flags, line);
  return flags;
}

template <class... Parts>
absl::Status Bad(const Parts&... parts) {
  return absl::InvalidArgumentError(absl::StrCat(parts...));
}

// Checks the security options against each other.
absl::Status CheckSecurity(const Options& options) {
  if (options.security.tls.cert.empty() != options.security.tls.key.empty()) {
    return Bad(options.security.tls.key.empty() ? "--tls-key" : "--tls-cert",
               ": expected a file, got none; --tls-cert and --tls-key go together");
  }
  if (!options.security.tls.client_ca.empty() && options.security.tls.cert.empty()) {
    return Bad("--tls-client-ca: expected --tls-cert and --tls-key with it");
  }
  if (!options.security.trace_collector_ca.empty() &&
      !(options.trace_collector && options.trace_collector->tls)) {
    return Bad("--trace-collector-ca: expected --trace-collector https://HOST:PORT with it");
  }
  const bool open = options.security.tenants.empty() && !options.insecure_listen;
  for (const auto& [flag, address] : {std::pair("--listen", options.listen.address),
                                      std::pair("--http-listen", options.http.address),
                                      std::pair("--metrics-address", options.metrics_address)}) {
    if (!open || address.empty() || IsLoopback(address)) continue;
    return Bad(flag, ": expected a loopback address such as 127.0.0.1:50051, got '", address,
               "'; others need --tenants, which asks for a token, or --insecure-listen=yes");
  }
  if (!options.admin_listen.empty() && options.security.tenants.empty() &&
      !IsLoopback(options.admin_listen)) {
    return Bad("--admin-listen: expected a loopback address such as 127.0.0.1:50052, got '",
               options.admin_listen, "'; others need --tenants, which asks for a token");
  }
  return absl::OkStatus();
}

// Refuses options of one kind of store that are given with another, or with none.
absl::Status CheckStoreOptions(const Options& options) {
  const bool redis = options.session_store.has_value(), bucket = options.session_bucket.has_value();
  const TlsTrust& tls = options.session_store_tls;
  const char* const any = "--session-store";
  for (const auto& [flag, given, kind, fits] :
       {std::tuple("--session-lease", options.session_lease.has_value(), any, redis || bucket),
        std::tuple("--session-store-password-file", !options.session_store_password_file.empty(),
                   "--session-store redis://", redis),
        std::tuple("--session-store-replicas", options.session_store_replicas.has_value(),
                   "--session-store redis://", redis),
        std::tuple("--session-store-endpoint", options.session_store_endpoint.has_value(),
                   "--session-store s3://", bucket),
        std::tuple("--session-store-region",
                   options.session_store_region != Options().session_store_region,
                   "--session-store s3://", bucket),
        std::tuple("--session-store-credentials-file",
                   !options.session_store_credentials_file.empty(), "--session-store s3://",
                   bucket),
        std::tuple("--session-store-ca", !tls.ca.empty(), "--session-store rediss:// or s3://",
                   (redis && options.session_store->tls) || bucket),
        std::tuple("--session-store-cert", !tls.cert.empty(), "--session-store rediss://",
                   redis && options.session_store->tls),
        std::tuple("--session-store-key", !tls.key.empty(), "--session-store-cert",
                   !tls.cert.empty())}) {
    if (given && !fits) return Bad(flag, ": expected ", kind, " with it");
  }
  if (bucket && options.session_store_credentials_file.empty()) {
    return Bad("--session-store: expected --session-store-credentials-file with s3://, got none");
  }
  if (!tls.cert.empty() && tls.key.empty()) {
    return Bad("--session-store-cert: expected --session-store-key with it");
  }
  const bool plain = options.session_store_endpoint && !options.session_store_endpoint->tls;
  if (plain && !tls.ca.empty()) {
    return Bad("--session-store-ca: expected --session-store-endpoint https:// with it");
  }
  if (redis && !options.session_store->user.empty() &&
      options.session_store_password_file.empty()) {
    return Bad("--session-store: expected --session-store-password-file with the user ",
               options.session_store->user, ", got none");
  }
  return absl::OkStatus();
}

// Checks the options that say where sessions are kept against each other.
absl::Status CheckSessionStorage(const Options& options) {
  if (options.engine.overcommit && !options.keeps_sessions()) {
    return Bad(
        "--admission=overcommit: expected --session-dir or --session-store, where idle sessions "
        "go, got none");
  }
  RETURN_IF_ERROR(CheckStoreOptions(options));
  if (!options.session_sync_always && options.session_dir.empty()) {
    return Bad("--session-sync=interval: expected --session-dir with it, got none");
  }
  if (!options.shares_sessions()) return absl::OkStatus();
  if (!options.session_dir.empty()) {
    return Bad("--session-store: expected no --session-dir with it, got '", options.session_dir,
               "'; sessions are in one place");
  }
  return absl::OkStatus();
}

absl::Status CheckTogether(const CommandLine& line) {
  const Options& options = line.options;
  if (options.model.empty()) {
    return Bad("--model: expected a model folder or a GGUF file, got none");
  }
  RETURN_IF_ERROR(CheckSecurity(options));
  if (line.action == CommandLine::Action::kPlan && !options.state_memory_bytes.has_value()) {
    return Bad("--plan: expected --state-memory, the memory to plan for, got none");
  }
  if (options.engine.session_ttl > options.engine.max_session_ttl) {
    return Bad("--session-ttl: expected at most --max-session-ttl, ",
               absl::FormatDuration(options.engine.max_session_ttl), ", got ",
               absl::FormatDuration(options.engine.session_ttl));
  }
  if (options.engine.trust_session_files && !options.fleet_key_file.empty()) {
    return Bad(
        "--imports=trust: expected replay with --fleet-key-file: the key would sign states that "
        "anyone may have made");
  }
  RETURN_IF_ERROR(CheckSessionStorage(options));
  for (const int64_t cap : options.plan_slot_caps) {
    if (cap <= options.engine.max_slot_cap) continue;
    return Bad("--plan-centroids: expected at most --max-centroids, ", options.engine.max_slot_cap,
               ", got ", cap);
  }
  return absl::OkStatus();
}

}  // namespace

bool IsLoopback(std::string_view address) {
  const std::string host(address.substr(0, address.rfind(':')));
  in_addr v4 = {};
  if (inet_pton(AF_INET, host.c_str(), &v4) == 1) return ntohl(v4.s_addr) >> 24 == 127;
  return host == "localhost" || host == "[::1]";
}

absl::StatusOr<CommandLine> ParseCommandLine(std::span<const std::string> args,
                                             const EnvLookup& env) {
  using Action = CommandLine::Action;
  CommandLine line;
  Flags flags = Declare(line);
  RETURN_IF_ERROR(flags.Read(args, env));
  line.settings = flags.settings();
  for (Action end : {Action::kHelp, Action::kVersion, Action::kHashToken}) {
    if (line.action == end) return line;
  }
  RETURN_IF_ERROR(CheckTogether(line));
  Options& options = line.options;
  const bool on_gpu = options.device == kernels::Device::kCuda;
  options.engine.max_batch_tokens =
      options.max_batch_tokens.value_or(on_gpu ? kCudaBatchTokens : kCpuBatchTokens);
  if (on_gpu) options.engine.least_step_time = kCudaLeastStepTime;
  return line;
}

std::string HelpText() {
  CommandLine line;
  return absl::StrCat(
      "ovq-server: serves language models with bounded memory over gRPC and HTTP.\n\n"
      "usage: ovq-server --model PATH [flags]     (--name value or --name=value)\n\n",
      Declare(line).Help(),
      "\nFlags win over the environment, the environment over the file, the file over the "
      "defaults.\n"
      "Sizes: 512M, 8G, 1.5GiB (powers of 1024). Durations: 250ms, 30s, 5m, 1h30m.\n"
      "SIGTERM or SIGINT drains and exits with 0; a second one exits at once. SIGHUP reads\n"
      "certificates and tenants again, which changed files do by themselves.\n"
      "Exit codes: 0 stopped by a signal, 1 failed to start or hung at the end, 2 bad options.\n");
}

}  // namespace ovq::server
