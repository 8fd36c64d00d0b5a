// ovq-server: creates and connects the parts, handles signals and drains.
#include <malloc.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/syscall.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "base/files.h"
#include "base/machine.h"
#include "base/out_of_memory.h"
#include "base/service_notifier.h"
#include "base/status_macros.h"
#include "server/access/security.h"
#include "server/apis/http_api.h"
#include "server/calls/rpc_labels.h"
#include "server/engine/engine.h"
#include "server/http/metrics_endpoint.h"
#include "server/loading.h"
#include "server/options.h"
#include "server/rpc/grpc_log.h"
#include "server/rpc/grpc_server.h"
#include "server/rpc/services.h"
#include "server/session_storage.h"
#include "server/shutdown.h"
#include "server/telemetry/log.h"
#include "server/telemetry/metrics.h"
#include "server/watchdog.h"

namespace ovq::server {
namespace {

constexpr int kExitFailed = 1;
constexpr int kExitUsage = 2;

constexpr absl::Duration kGoodbye = absl::Milliseconds(100);  // time to close connections without
                                                              // calls

// Publishes readiness to health checks and metrics: the server is ready unless it hangs or drains.
// Thread-safe.
class Readiness {
 public:
  // `http` is null if there is no HTTP front.
  Readiness(Metrics& metrics, GrpcServer& server, HttpApi* http)
      : metrics_(metrics), server_(server), http_(http) {
    Publish();
  }
  void SetHanging(bool hanging) {
    std::lock_guard lock(mutex_);
    hanging_ = hanging;
    Publish();
  }
  void SetDraining() {
    std::lock_guard lock(mutex_);
    draining_ = true;
    Publish();
  }

 private:
  void Publish() {
    const bool ready = !hanging_ && !draining_;
    metrics_.ready.Set(ready);
    metrics_.draining.Set(draining_);
    server_.SetServing(ready);
    if (http_ != nullptr) http_->SetReady(ready);
  }

  Metrics& metrics_;
  GrpcServer& server_;
  HttpApi* const http_;
  std::mutex mutex_;  // guards the members below
  bool hanging_ = false, draining_ = false;
};

// Health changes first, so that balancers stop sending calls; then running streams get time to end.
void Drain(const Options& options, engine::Engine& engine, ServiceContext& services,
           Readiness& readiness, GrpcServer& server, HttpApi* http, Log& log) {
  readiness.SetDraining();
  absl::SleepFor(options.drain_notice);
  const absl::Time deadline = absl::Now() + options.drain_timeout;
  services.Drain();
  if (http != nullptr) http->server().EndConnections();
  if (!engine.Drain(options.drain_timeout)) {
    log.Warning("drain: time is up, open requests were ended");
  }
  // The last answers are on their way; this bounds the time for clients that do not read.
  const absl::Time last = std::max(deadline, absl::Now() + absl::Seconds(1));
  const bool calls_ended = services.AwaitCalls(last);
  const bool answered = http == nullptr || http->server().AwaitAnswers(last);
  if (!calls_ended || !answered) {
    log.Warning("drain: time is up, calls that waited for their clients were ended");
  }
  // Only connections are left. Without this limit gRPC waits for each to answer a ping: 20 s for
  // one whose client is idle and not reading.
  server.Shutdown(absl::Now() + kGoodbye);
  if (http != nullptr) http->server().Shutdown();
}

constexpr absl::Duration kLookAtFiles = absl::Milliseconds(500);

// Loads tokens and TLS files before the weights, which take longer.
absl::StatusOr<std::unique_ptr<Security>> LoadSecurity(const Options& options, Log& log) {
  const SecurityFiles& files = options.security;
  for (const std::string& address :
       {options.listen.address, options.http.address, options.admin_listen}) {
    if (files.tenants.empty() || !files.tls.cert.empty()) break;
    if (address.empty() || IsLoopback(address)) continue;
    log.Warning(absl::StrCat("--tenants without --tls-cert on ", address,
                             ": whoever can listen to the network can read the tokens"));
  }
  return Security::Load(files);
}

std::string WithPort(const std::string& address, int port) {
  return absl::StrCat(address.substr(0, address.rfind(':')), ":", port);
}

// Starts the admin service; null without --admin-listen.
absl::StatusOr<std::unique_ptr<GrpcServer>> StartAdmin(const Options& options, ListenOptions listen,
                                                       ServiceContext& services,
                                                       Shutdown& shutdown) {
  Log& log = services.log.log;
  if (options.admin_listen.empty()) return nullptr;
  listen.address = options.admin_listen;
  listen.flag = "--admin-listen";
  absl::StatusOr<std::unique_ptr<GrpcServer>> admin =
      GrpcServer::Start(listen, AdminServices(services, [&shutdown, &log] {
                          log.Info("drain asked for by the admin service; a signal ends at once");
                          shutdown.Drain();
                        }));
  if (admin.ok()) {
    log.Info(absl::StrCat("admin on ", WithPort(options.admin_listen, (*admin)->port())));
  }
  return admin;
}

// The line of the log and of stdout that says where the HTTP front is.
std::string HttpLine(const Options& options, const ListenOptions& listen, HttpApi& api) {
  return absl::StrCat("http on ", listen.tls == nullptr ? "http://" : "https://",
                      WithPort(options.http.address, api.server().port()));
}

// Starts the HTTP front with the limits of gRPC's connections; null without --http-listen.
absl::StatusOr<std::unique_ptr<HttpApi>> StartHttp(const Options& options,
                                                   const ListenOptions& listen,
                                                   ServiceContext& services) {
  HttpOptions http = options.http;
  if (http.address.empty()) return nullptr;
  http.max_body_bytes = listen.max_message_bytes;
  http.header_timeout = listen.handshake_timeout;
  http.idle_timeout = std::min(http.idle_timeout, listen.max_connection_idle);
  http.tls = listen.tls;
  BrowserRules rules = options.browsers;
  const bool open = options.security.tenants.empty();
  rules.check_host = !rules.hosts.empty() || (open && IsLoopback(http.address));
  if (open && std::ranges::count(rules.origins, "*") > 0) {
    services.log.log.Warning(
        "--http-allowed-origins=*: any page in a browser that reaches the server may use it");
  }
  auto api = std::make_unique<HttpApi>(services, std::move(rules));
  RETURN_IF_ERROR(api->Listen(http));
  services.log.log.Info(HttpLine(options, listen, *api));
  return api;
}

// Serves from the first call to the end of the drain.
absl::Status ServeCalls(const Options& options, const Security& security, engine::Engine& engine,
                        ServiceContext& services, Shutdown& shutdown,
                        std::optional<ShutdownDeadline>& end) {
  ListenOptions listen = options.listen;
  listen.tls = security.tls();
  ASSIGN_OR_RETURN(std::unique_ptr<GrpcServer> server,
                   GrpcServer::Start(listen, ClientServices(services)));
  // An admin call may drain at once, so signals must be handled as while serving.
  shutdown.Serve();
  ASSIGN_OR_RETURN(std::unique_ptr<GrpcServer> admin,
                   StartAdmin(options, listen, services, shutdown));
  Log& log = services.log.log;
  ASSIGN_OR_RETURN(std::unique_ptr<HttpApi> http, StartHttp(options, listen, services));
  Readiness readiness(services.metrics, *server, http.get());
  const ServiceNotifier notifier = ServiceNotifier::FromEnvironment();
  const Watchdog watchdog(
      options.step_timeout, notifier, [&engine] { return engine.iteration_in_progress(); },
      {.hangs =
           [&](const engine::IterationInProgress& step, absl::Duration time) {
             services.metrics.iteration_timeouts.Increment();
             readiness.SetHanging(true);
             log.Error(absl::InternalError(absl::StrFormat(
                 "step %d has taken %s, longer than --step-timeout: %d answers, %d prompts with %d "
                 "tokens to read; health is NOT_SERVING until it ends",
                 step.number, absl::FormatDuration(time), step.answers, step.prompts,
                 step.prompt_tokens)));
           },
       .ended =
           [&] {
             readiness.SetHanging(false);
             log.Info("the step that took too long has ended");
           }});
  // Flushes the log first, so that a reader of the lines below finds the other addresses in it.
  log.Flush(kLogFlushTimeout);
  notifier.Ready();
  // One write, as a reader may close the pipe after the first line.
  std::string ready = absl::StrCat("listening on ", WithPort(listen.address, server->port()), "\n");
  if (http != nullptr) absl::StrAppend(&ready, HttpLine(options, listen, *http), "\n");
  std::fputs(ready.c_str(), stdout);
  std::fflush(stdout);
  shutdown.WaitForFirst();
  notifier.Stopping();
  end.emplace(options.drain_notice + options.drain_timeout, log);
  Drain(options, engine, services, readiness, *server, http.get(), log);
  return absl::OkStatus();
}

// Lowers the priority of this thread and of all that it starts from here on, gRPC's included, so
// that answers continue while calls come in faster than they can be read.
void ReserveProcessorsForEngine() {
  constexpr int kNice = 3;
  setpriority(PRIO_PROCESS, static_cast<id_t>(gettid()), kNice);
}

// EngineOptions::calibration.
constexpr absl::Duration kCalibration = absl::Seconds(1);

absl::Status Serve(const Options& options, Shutdown& shutdown, Log& log) {
  std::optional<ShutdownDeadline> end;  // destroyed last
  ASSIGN_OR_RETURN(std::unique_ptr<Security> security, LoadSecurity(options, log));
  engine::EngineOptions engine_options = options.engine;
  ASSIGN_OR_RETURN(engine_options.fleet_keys, LoadNamedFleetKeys(options));
  RETURN_IF_ERROR(CheckStoreSecrets(options));  // it reads them again when it opens the store
  ASSIGN_OR_RETURN(Loaded loaded, LoadAll(options, log));
  const model::LanguageModel& model = *loaded.models.front();
  const ModelDescription description = Describe(loaded, options);
  ASSIGN_OR_RETURN(const size_t state_memory,
                   StateMemoryBytes(options, model.config(), *loaded.context));
  engine_options.state_memory_bytes = state_memory;
  const CopyMemory copies = CopyMemoryFor(options, state_memory);
  engine_options.checkpoint_memory_bytes = copies.checkpoints;
  engine_options.prefix_memory_bytes = copies.prefixes;
  engine_options.request_memory =
      std::make_shared<ByteBudget>(options.request_memory_bytes.value_or(UsableMemory().total / 8));
  engine::EngineModel served = ToEngineModel(loaded, options);
  LogSummary(model, description, served, engine_options, log);

  Metrics metrics(description, {.methods = RpcLabels(), .routes = HttpRouteLabels()});
  metrics.SetSource<LogCounts>([&log] { return log.counts(); });
  std::unique_ptr<HttpServer> endpoint;
  if (!options.metrics_address.empty()) {
    ASSIGN_OR_RETURN(endpoint, ServeMetrics(options.metrics_address, metrics));
    log.Info(absl::StrCat("metrics on http://", WithPort(options.metrics_address, endpoint->port()),
                          "/metrics"));
  }
  ASSIGN_OR_RETURN(SessionStorage storage, OpenSessionStorage(options, metrics, log));
  engine_options.session_store = storage.store;
  engine_options.calibration = kCalibration;
  RETURN_IF_ERROR(AddOwnFleetKey(options, engine_options));
  engine::EngineThread engine_thread(std::move(served), engine_options, std::move(loaded.context),
                                     metrics.Events());
  engine::Engine& engine = engine_thread.engine();
  metrics.SetSource<engine::EngineStats>([&engine] { return engine.Stats(); });
  if (storage.store != nullptr) {
    metrics.SetSource<StoreFigures>(
        [store = storage.store] { return StoreFigures{store->owned()}; });
  }
  AdoptSessions(options, std::move(storage.found), engine, log);
  security->Watch(engine.quotas(), metrics, log, kLookAtFiles);
  shutdown.OnHangUp([&] {
    log.Info("SIGHUP: certificates and tenants are read again");
    security->Reload();
  });
  absl::Status status;
  ReserveProcessorsForEngine();
  std::optional<TraceExporter> traces;
  if (options.trace_collector) {
    TraceCollector collector = *options.trace_collector;
    collector.ca = options.security.trace_collector_ca;
    traces.emplace(std::move(collector));
    metrics.SetSource<TraceCounts>([&traces] { return traces->counts(); });
  }
  {
    ServiceContext services(engine, description, metrics,
                            {log, options.log_requests, traces ? &*traces : nullptr},
                            security->tenants());
    status = ServeCalls(options, *security, engine, services, shutdown, end);
  }
  shutdown.OnHangUp({});
  security->Unwatch();
  metrics.SetSource<engine::EngineStats>(nullptr);
  metrics.SetSource<StoreFigures>(nullptr);
  metrics.SetSource<TraceCounts>(nullptr);
  return status;
}

// Prints the text, or logs the error; returns the exit status.
int Print(const absl::StatusOr<std::string>& text, Log& log, int failed = kExitFailed) {
  if (text.ok()) std::fputs(text->c_str(), stdout);
  const absl::Status status = text.ok() ? FlushStdout() : text.status();
  if (status.ok()) return 0;
  log.Error(status);
  return text.ok() ? kExitFailed : failed;
}

// Implements --hash-token: reads a token from stdin and prints its digest.
int PrintTokenHash(Log& log) {
  std::string input(8192, '\0');
  input.resize(std::fread(input.data(), 1, input.size(), stdin));
  absl::StatusOr<std::string> hash = HashToken(input);
  if (hash.ok()) hash->push_back('\n');
  return Print(hash, log, kExitUsage);
}

// Every connection is an open file, and gRPC stops accepting connections for good once it could not
// open one.
void RaiseFileLimit(Log& log) {
  rlimit limit = {};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  if (setrlimit(RLIMIT_NOFILE, &limit) != 0) {
    log.Warning("the limit of open files could not be raised");
  }
}

// Fixes the malloc threshold: otherwise glibc raises it when a large allocation is freed, and then
// keeps the memory of large messages in an arena for each thread that met one.
void ReturnLargeAllocations() {
#ifdef __GLIBC__
  mallopt(M_MMAP_THRESHOLD, 1 << 20);
#endif
}

int Run(const std::vector<std::string>& args) {
  HoldStandardFiles();
  EndWhenOutOfMemory();
  signal(SIGPIPE, SIG_IGN);  // readers of this program's output may close it
  const absl::StatusOr<CommandLine> line =
      ParseCommandLine(args, [](const std::string& name) -> std::optional<std::string> {
        const char* value = std::getenv(name.c_str());
        if (value == nullptr) return std::nullopt;
        return value;
      });
  if (!line.ok()) {
    // The log options may be invalid themselves, so this error uses the defaults.
    Log({}).Error(line.status());
    return kExitUsage;
  }
  Log log(line->options.log);
  if (line->action == CommandLine::Action::kHelp) return Print(HelpText(), log);
  if (line->action == CommandLine::Action::kVersion) {
    return Print(std::string("ovq-server " OVQ_VERSION "\n"), log);
  }
  if (line->action == CommandLine::Action::kPlan) return Print(PlanText(line->options), log);
  if (line->action == CommandLine::Action::kCheckConfig) {
    absl::Status security = LoadSecurity(line->options, log).status();
    if (security.ok()) security = LoadNamedFleetKeys(line->options).status();
    if (security.ok()) security = CheckStoreSecrets(line->options);
    return Print(security.ok() ? CheckConfig(*line) : security, log);
  }
  if (line->action == CommandLine::Action::kHashToken) return PrintTokenHash(log);
  const GrpcLog grpc_log(log);
  RaiseFileLimit(log);
  ReturnLargeAllocations();
  Shutdown shutdown(log);
  if (absl::Status status = Serve(line->options, shutdown, log); !status.ok()) {
    log.Error(status);
    return kExitFailed;
  }
  log.Info("stopped");
  return 0;
}

// Blocks signals that would end the process before Shutdown handles them. It runs before the
// initializers of some seventy libraries, so early that it calls the kernel directly and no
// sanitizer can instrument it.
[[gnu::no_sanitize("address", "undefined")]] void HoldSignals(int, char**, char**) {
  unsigned long signals = 0;  // a signal set in the kernel's format
  for (const int signal : {SIGHUP, SIGUSR1, SIGUSR2}) signals |= 1ul << (signal - 1);
  syscall(SYS_rt_sigprocmask, SIG_BLOCK, &signals, nullptr, sizeof(signals));
}
[[gnu::section(".preinit_array"), gnu::used]] void (*const hold_signals)(int, char**,
                                                                         char**) = HoldSignals;

}  // namespace
}  // namespace ovq::server

int main(int argc, char** argv) {
  return ovq::server::Run(std::vector<std::string>(argv + 1, argv + argc));
}
