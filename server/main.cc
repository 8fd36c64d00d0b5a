// ovq-server: wiring, signals and drain.
#include <pthread.h>
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/synchronization/notification.h"
#include "model/language_model.h"
#include "server/admin_service.h"
#include "server/grpc_server.h"
#include "server/metrics.h"
#include "server/options.h"
#include "server/plan.h"
#include "server/process_stats.h"
#include "server/security.h"

namespace ovq {
namespace {

constexpr int kExitFailed = 1;
constexpr int kExitUsage = 2;

void Log(const std::string& line) { std::fprintf(stderr, "ovq-server: %s\n", line.c_str()); }

// Waits for SIGTERM and SIGINT on a thread of its own. Make it before any other thread, so that
// all of them inherit the blocked signals.
class SignalWaiter {
 public:
  SignalWaiter() {
    sigemptyset(&signals_);
    for (int signal : {SIGTERM, SIGINT, kEnd}) sigaddset(&signals_, signal);
    pthread_sigmask(SIG_BLOCK, &signals_, nullptr);
    thread_ = std::thread([this] { Loop(); });
  }
  ~SignalWaiter() {
    pthread_kill(thread_.native_handle(), kEnd);
    thread_.join();
  }
  // From now on the first signal asks for a drain; before, it ends the process.
  void Serve() { serving_ = true; }
  void WaitForFirst() { first_.WaitForNotification(); }
  // As the first signal; changes nothing after it. Any thread, while serving.
  void Drain() {
    if (!draining_.exchange(true)) first_.Notify();
  }

 private:
  static constexpr int kEnd = SIGUSR1;

  void Loop() {
    for (;;) {
      int signal = 0;
      if (sigwait(&signals_, &signal) != 0) continue;
      if (signal == kEnd) return;
      if (!serving_ || draining_) {
        Log(absl::StrCat("ended by signal ", signal));
        _exit(128 + signal);
      }
      Log(absl::StrCat("signal ", signal, ": draining; a second one ends at once"));
      Drain();
    }
  }

  sigset_t signals_;
  std::atomic<bool> serving_{false};
  std::atomic<bool> draining_{false};
  absl::Notification first_;
  std::thread thread_;
};

std::string Lower(const char* name) { return absl::AsciiStrToLower(name); }

// "/models/tiny/" and "/models/tiny" are both "tiny".
std::string FolderName(const std::string& folder) {
  std::filesystem::path path = std::filesystem::absolute(folder).lexically_normal();
  if (path.filename().empty()) path = path.parent_path();
  return path.filename().string();
}

ModelDescription Describe(const LanguageModel& model, const Options& options) {
  const ModelConfig& config = model.config();
  return {.name = FolderName(options.model),
          .fingerprint = model.fingerprint(),
          .hidden_size = config.hidden_size,
          .layer_types = config.layer_types,
          .parameters = model.parameters(),
          .bos_token_id = config.bos_token_id,
          .device = DeviceName(options.device),
          .compute_dtype = Lower(DTypeName(model.compute_dtype())),
          .state_dtype = Lower(DTypeName(model.state_dtype()))};
}

EngineModel ForEngine(const LanguageModel& model, const Tokenizer& tokenizer) {
  const ModelConfig& config = model.config();
  EngineModel result;
  result.vocab_size = config.vocab_size;
  result.eos_token_ids = config.eos_token_ids;
  result.default_max_centroids = static_cast<int32_t>(config.default_max_centroids);
  result.full_kv_bytes_per_token = model.full_kv_bytes_per_token();
  result.layout = &model.layout();
  result.tokenizer = tokenizer.has_text() ? &tokenizer : nullptr;
  result.forward = [&model](const StepBatch& batch, DeviceContext& context, ScratchScope& scope) {
    return model.Forward(batch, context, scope);
  };
  return result;
}

// What the largest step takes beside the states: its logits and activations, twice because scratch
// grows by doubling, and the parts of split attention, the sampler's scratch and recorded graphs.
size_t StepBytes(const ModelConfig& config, const Options& options) {
  const int64_t d_ff = std::ranges::max(config.intermediate_size);
  const int64_t row = config.vocab_size + 3 * d_ff + 8 * config.hidden_size;
  return 2 * sizeof(float) * static_cast<size_t>(options.max_batch_tokens * row) +
         (size_t{512} << 20);
}

// With the weights loaded: what is free now is the states' and the steps'.
absl::StatusOr<size_t> StateMemoryBytes(const Options& options, const ModelConfig& config,
                                        const DeviceContext& context) {
  const std::optional<GpuInfo> gpu = context.Gpu();
  if (!gpu) return options.state_memory_bytes.value_or(AvailableMemoryBytes() / 2);
  // A GPU does not swap: what was promised and is not there would end the server later.
  const size_t step = StepBytes(config, options);
  const size_t room = gpu->free_bytes - std::min(step, gpu->free_bytes);
  const size_t bytes = options.state_memory_bytes.value_or(std::min(gpu->free_bytes / 2, room));
  if (bytes > room || room == 0) {
    return absl::InvalidArgumentError(
        absl::StrFormat("--state-memory: expected at most %d bytes, got %d: %s has %d bytes free "
                        "after the weights, "
                        "of which a step of --max-batch-tokens takes %d",
                        room, bytes, gpu->name, gpu->free_bytes, step));
  }
  return bytes;
}

EngineOptions ForEngine(const Options& options, size_t state_memory_bytes) {
  EngineOptions result;
  result.state_memory_bytes = state_memory_bytes;
  result.max_sessions = options.max_sessions;
  result.max_queue = options.max_queue;
  result.max_batch_tokens = options.max_batch_tokens;
  result.max_centroids = options.max_centroids;
  result.max_prompt_tokens = options.max_prompt_tokens;
  result.session_ttl = options.session_ttl;
  return result;
}

void LogSummary(const LanguageModel& model, const ModelDescription& description,
                const EngineOptions& options) {
  const size_t cap =
      model.layout().bytes_cap(static_cast<int32_t>(model.config().default_max_centroids));
  const int fit =
      SessionSlots(model.layout(), static_cast<int32_t>(model.config().default_max_centroids),
                   options.state_memory_bytes, options.max_sessions);
  Log(absl::StrFormat("model %s: %d parameters, %d layers, %d weight bytes, compute %s on %s",
                      description.name, description.parameters, description.layer_types.size(),
                      model.weight_bytes(), description.compute_dtype, description.device));
  Log(absl::StrFormat(
      "state: %s, at most %d bytes a session at max_centroids %d; %d sessions fit in %d bytes",
      description.state_dtype, cap, model.config().default_max_centroids, fit,
      options.state_memory_bytes));
}

// What must outlive the server, in the order of making.
struct Loaded {
  std::unique_ptr<DeviceContext> context;
  std::unique_ptr<LanguageModel> model;
  std::unique_ptr<Tokenizer> tokenizer;
};

absl::StatusOr<Loaded> LoadAll(const Options& options) {
  Loaded loaded;
  absl::StatusOr<ModelConfig> config = LoadConfig(options.model);
  if (!config.ok()) return config.status();
  absl::StatusOr<std::unique_ptr<DeviceContext>> context =
      DeviceContext::Make(options.device, options.threads);
  if (!context.ok()) return context.status();
  loaded.context = *std::move(context);
  loaded.context->BindThread();
  if (const std::optional<GpuInfo> gpu = loaded.context->Gpu()) {
    Log(absl::StrFormat("GPU %s: %d bytes of memory, %d free", gpu->name, gpu->total_bytes,
                        gpu->free_bytes));
  }

  ModelOptions model_options;
  model_options.compute_dtype = options.compute_dtype;
  model_options.state_dtype = StateDType(options, *config);
  model_options.limits = {.max_centroids = options.max_centroids,
                          .max_unbounded_tokens = options.max_context};
  absl::StatusOr<std::unique_ptr<LanguageModel>> model =
      LanguageModel::Load(options.model, model_options, *loaded.context);
  if (!model.ok()) return model.status();
  loaded.model = *std::move(model);
  absl::StatusOr<std::unique_ptr<Tokenizer>> tokenizer =
      Tokenizer::Load(options.model, loaded.model->config());
  if (!tokenizer.ok()) return tokenizer.status();
  loaded.tokenizer = *std::move(tokenizer);
  return loaded;
}

// Health first, so that balancers turn away; then running streams get their time.
void Drain(const Options& options, Engine& engine, ServiceContext& services, GrpcServer& server,
           Metrics& metrics) {
  const absl::Time deadline = absl::Now() + options.drain_timeout;
  metrics.SetReady(false);
  metrics.SetDraining(true);
  server.SetServing(false);
  services.Drain();
  if (!engine.Drain(options.drain_timeout)) Log("drain: time is up, open requests were ended");
  // The last answers are on their way to clients that read; this bounds those that do not.
  server.Shutdown(std::max(deadline, absl::Now() + absl::Seconds(1)));
}

constexpr absl::Duration kLookAtFiles = absl::Milliseconds(500);

// Before the weights, which take longer.
absl::StatusOr<std::unique_ptr<Security>> LoadSecurity(const Options& options) {
  for (const std::string& address : {options.listen, options.admin_listen}) {
    if (options.tenants.empty() || !options.tls_cert.empty()) break;
    if (address.empty() || IsLoopback(address)) continue;
    Log(absl::StrCat("warning: --tenants without --tls-cert on ", address,
                     ": whoever can listen to the network can read the tokens"));
  }
  return Security::Load({.tls = {.cert = options.tls_cert,
                                 .key = options.tls_key,
                                 .client_ca = options.tls_client_ca},
                         .tenants = options.tenants});
}

ListenOptions ForListener(const Options& options, const Security& security) {
  return {.address = options.listen,
          .max_message_bytes = options.max_message_bytes,
          .max_streams_per_connection = options.max_streams_per_connection,
          .handshake_timeout = options.handshake_timeout,
          .max_connection_idle = options.max_connection_idle,
          .tls = security.tls()};
}

std::string WithPort(const std::string& address, int port) {
  return absl::StrCat(address.substr(0, address.rfind(':')), ":", port);
}

// Null without --admin-listen.
absl::StatusOr<std::unique_ptr<AdminServer>> StartAdmin(const Options& options,
                                                        ListenOptions listen,
                                                        ServiceContext& services,
                                                        SignalWaiter& signals) {
  if (options.admin_listen.empty()) return nullptr;
  listen.address = options.admin_listen;
  listen.flag = "--admin-listen";
  absl::StatusOr<std::unique_ptr<AdminServer>> admin =
      AdminServer::Start(listen, services, [&signals] {
        Log("drain asked for by the admin service; a signal ends at once");
        signals.Drain();
      });
  if (admin.ok()) Log(absl::StrCat("admin on ", WithPort(options.admin_listen, (*admin)->port())));
  return admin;
}

// From the first call to the end of the drain.
absl::Status ServeCalls(const Options& options, const Security& security, Engine& engine,
                        ServiceContext& services, SignalWaiter& signals) {
  const ListenOptions listen = ForListener(options, security);
  absl::StatusOr<std::unique_ptr<GrpcServer>> server = GrpcServer::Start(listen, services);
  if (!server.ok()) return server.status();
  // Admin calls may drain at once: the waiter must be serving.
  signals.Serve();
  absl::StatusOr<std::unique_ptr<AdminServer>> admin =
      StartAdmin(options, listen, services, signals);
  if (!admin.ok()) return admin.status();
  services.metrics.SetReady(true);
  std::printf("listening on %s\n", WithPort(options.listen, (*server)->port()).c_str());
  std::fflush(stdout);
  signals.WaitForFirst();
  Drain(options, engine, services, **server, services.metrics);
  return absl::OkStatus();
}

absl::Status Serve(const Options& options, SignalWaiter& signals) {
  absl::StatusOr<std::unique_ptr<Security>> security = LoadSecurity(options);
  if (!security.ok()) return security.status();
  absl::StatusOr<Loaded> loaded = LoadAll(options);
  if (!loaded.ok()) return loaded.status();
  const LanguageModel& model = *loaded->model;
  const ModelDescription description = Describe(model, options);
  const absl::StatusOr<size_t> state_memory =
      StateMemoryBytes(options, model.config(), *loaded->context);
  if (!state_memory.ok()) return state_memory.status();
  const EngineOptions engine_options = ForEngine(options, *state_memory);
  LogSummary(model, description, engine_options);

  Metrics metrics({.model = description.name,
                   .version = OVQ_VERSION,
                   .fingerprint = description.fingerprint,
                   .device = description.device,
                   .compute_dtype = description.compute_dtype,
                   .state_dtype = description.state_dtype,
                   .weight_bytes = model.weight_bytes(),
                   .has_gpu = options.device == Device::kCuda,
                   .has_dictionary = model.layout().has_centroids()});
  if (!options.metrics_address.empty()) {
    absl::StatusOr<int> port = metrics.Expose(options.metrics_address);
    if (!port.ok()) return port.status();
    const std::string host = options.metrics_address.substr(0, options.metrics_address.rfind(':'));
    Log(absl::StrCat("metrics on http://", host, ":", *port, "/metrics"));
  }
  Engine engine(ForEngine(model, *loaded->tokenizer), engine_options, std::move(loaded->context),
                metrics.Events());
  metrics.SetStatsSource([&engine] { return engine.Stats(); });
  (*security)->Watch(engine.quotas(), metrics, &Log, kLookAtFiles);
  absl::Status status;
  {
    ServiceContext services(engine, description, metrics, (*security)->tenants());
    status = ServeCalls(options, **security, engine, services, signals);
  }
  (*security)->Unwatch();
  metrics.SetStatsSource(nullptr);
  return status;
}

// The exit status.
int Print(const absl::StatusOr<std::string>& text) {
  if (text.ok()) std::fputs(text->c_str(), stdout);
  if (!text.ok()) Log(std::string(text.status().message()));
  return text.ok() ? 0 : kExitFailed;
}

// --hash-token: reads stdin, prints the digest.
int PrintTokenHash() {
  std::string input(8192, '\0');
  input.resize(std::fread(input.data(), 1, input.size(), stdin));
  const absl::StatusOr<std::string> hash = HashToken(input);
  if (!hash.ok()) {
    Log(std::string(hash.status().message()));
    return kExitUsage;
  }
  std::puts(hash->c_str());
  return 0;
}

// Every connection is an open file, and the gRPC library takes no more connections, ever, once it
// could not open one.
void RaiseFileLimit() {
  rlimit limit = {};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  if (setrlimit(RLIMIT_NOFILE, &limit) != 0) Log("the limit of open files could not be raised");
}

int Run(const std::vector<std::string>& args) {
  const absl::StatusOr<CommandLine> line =
      ParseCommandLine(args, [](const std::string& name) -> std::optional<std::string> {
        const char* value = std::getenv(name.c_str());
        if (value == nullptr) return std::nullopt;
        return value;
      });
  if (!line.ok()) {
    Log(std::string(line.status().message()));
    return kExitUsage;
  }
  if (line->action == CommandLine::Action::kHelp) {
    std::fputs(HelpText().c_str(), stdout);
    return 0;
  }
  if (line->action == CommandLine::Action::kVersion) {
    std::puts("ovq-server " OVQ_VERSION);
    return 0;
  }
  if (line->action == CommandLine::Action::kPlan) return Print(PlanText(line->options));
  if (line->action == CommandLine::Action::kCheckConfig) {
    const absl::Status security = LoadSecurity(line->options).status();
    return Print(security.ok() ? CheckConfig(*line) : security);
  }
  if (line->action == CommandLine::Action::kHashToken) return PrintTokenHash();
  RaiseFileLimit();
  SignalWaiter signals;
  if (absl::Status status = Serve(line->options, signals); !status.ok()) {
    Log(std::string(status.message()));
    return kExitFailed;
  }
  Log("stopped");
  return 0;
}

}  // namespace
}  // namespace ovq

int main(int argc, char** argv) {
  return ovq::Run(std::vector<std::string>(argv + 1, argv + argc));
}
