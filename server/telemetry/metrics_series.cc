#include "server/telemetry/metrics_series.h"

#include "server/telemetry/process_stats.h"

namespace ovq {
namespace {

using prometheus::BuildCounter;
using prometheus::BuildGauge;
using prometheus::BuildHistogram;
using prometheus::Labels;
using Buckets = prometheus::Histogram::BucketBoundaries;

// The OpenTelemetry buckets for generative AI, longer at the end: prompts may be a million tokens.
const Buckets kFirstTokenBuckets = {.001, .005, .01, .02, .04, .06, .08, .1, .25, .5,
                                    .75,  1,    2.5, 5,   7.5, 10,  20,  40, 80};
const Buckets kDurationBuckets = {.01,  .02,   .04,   .08,   .16,   .32,    .64,    1.28,  2.56,
                                  5.12, 10.24, 20.48, 40.96, 81.92, 163.84, 327.68, 655.36};
const Buckets kInterTokenBuckets = {.002, .004, .006, .008, .01, .015, .02, .025, .03, .04,
                                    .06,  .08,  .1,   .2,   .4,  .6,   .8,  1,    2,   4};
const Buckets kQueueBuckets = {.001, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60};
const Buckets kTokenBuckets = {1, 4, 16, 64, 256, 1024, 4096, 16384, 65536, 262144, 1048576};
const Buckets kStepTokenBuckets = {1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384};
const Buckets kStepBuckets = {.0005, .001, .002, .004, .008, .016, .032, .064, .128, .256, .512, 1};
const Buckets kReleaseBuckets = {.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1};
const Buckets kPerTokenBuckets = {.01, .025, .05, .075, .1, .15, .2, .3, .4, .5, .75, 1, 2.5};
const Buckets kEventBuckets = {.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5};
const Buckets kRatioBuckets = {.1, .2, .3, .4, .5, .6, .7, .8, .9, 1};

// Makes families in one registry, all with the same constant labels.
class Maker {
 public:
  Maker(prometheus::Registry& registry, const Labels& labels)
      : registry_(registry), labels_(labels) {}

  auto& Counters(const char* name, const char* help) {
    return BuildCounter().Name(name).Help(help).Labels(labels_).Register(registry_);
  }
  auto& Gauges(const char* name, const char* help) {
    return BuildGauge().Name(name).Help(help).Labels(labels_).Register(registry_);
  }
  auto& Histograms(const char* name, const char* help) {
    return BuildHistogram().Name(name).Help(help).Labels(labels_).Register(registry_);
  }
  prometheus::Counter* Counter(const char* name, const char* help) {
    return &Counters(name, help).Add({});
  }
  prometheus::Gauge* Gauge(const char* name, const char* help) {
    return &Gauges(name, help).Add({});
  }
  prometheus::Histogram* Histogram(const char* name, const char* help, const Buckets& buckets) {
    return &Histograms(name, help).Add({}, buckets);
  }

 private:
  prometheus::Registry& registry_;
  const Labels labels_;
};

}  // namespace

Metrics::Series::Series(const MetricsInfo& info) {
  const Labels model = {{"model", info.model}};
  AddRequests(model);
  AddLatencies(model);
  AddSteps(model);
  AddSessions(model);
  AddSessionEvents(model);
  if (info.has_dictionary) AddDictionary(model);
  AddSecurity();
  AddLog();
  AddServer(info, model);
  AddProcess();
}

void Metrics::Series::Count(const RequestReport& report) {
  const Usage& usage = report.usage;
  queue->Observe(absl::ToDoubleSeconds(usage.queue_time));
  prefill->Observe(absl::ToDoubleSeconds(usage.prefill_time));
  prompt_tokens->Increment(static_cast<double>(usage.prompt_tokens));
  request_prompt_tokens->Observe(static_cast<double>(usage.prompt_tokens));
  if (report.dictionary_fill && dictionary_fill != nullptr) {
    dictionary_fill->Observe(*report.dictionary_fill);
  }
  if (report.score) return;  // a Score generates nothing
  finished.at(report.reason)->Increment();
  decode->Observe(absl::ToDoubleSeconds(usage.decode_time));
  generated_tokens->Increment(static_cast<double>(usage.generated_tokens));
  request_generated_tokens->Observe(static_cast<double>(usage.generated_tokens));
}

void Metrics::Series::Count(const SessionReport& report) {
  const std::string_view event = report.event;
  session_events.find(event)->second->Increment();
  const auto duration = session_event_duration.find(event);
  if (duration != session_event_duration.end()) {
    duration->second->Observe(absl::ToDoubleSeconds(report.duration));
  }
  if (event != "open") session_tokens->Observe(static_cast<double>(report.position));
}

void Metrics::Series::AddRequests(const Labels& model) {
  Maker make(registry, model);
  auto& calls = make.Counters("ovq_requests_total", "RPCs that ended, by gRPC status code.");
  auto& durations = make.Histograms("ovq_request_duration_seconds",
                                    "Time from an RPC's arrival to its end; of Chat, the stream.");
  for (int i = 0; i < kMethods; ++i) {
    const std::string method = MethodName(static_cast<Method>(i));
    for (size_t code = 0; code < kStatusNames.size(); ++code) {
      requests[i][code] = &calls.Add({{"method", method}, {"code", kStatusNames[code]}});
    }
    request_duration[i] = &durations.Add({{"method", method}}, kDurationBuckets);
  }
  auto& ends = make.Counters("ovq_requests_finished_total",
                             "Generation requests that ended, by the reason.");
  for (FinishReason reason : {FinishReason::kStop, FinishReason::kLength, FinishReason::kCancelled,
                              FinishReason::kDeadline, FinishReason::kError}) {
    finished[reason] = &ends.Add({{"reason", FinishReasonName(reason)}});
  }
  auto& refused = make.Counters("ovq_admission_rejections_total",
                                "Requests and sessions refused for want of room.");
  for (int i = 0; i < kRejectReasons; ++i) {
    const auto reason = static_cast<RejectReason>(i);
    rejections[reason] = &refused.Add({{"reason", RejectReasonName(reason)}});
  }
  requests_running = make.Gauge("ovq_requests_running", "Requests that hold a state and run.");
  requests_waiting = make.Gauge("ovq_requests_waiting", "Requests that wait for admission.");
  requests_blocked = make.Gauge("ovq_requests_blocked",
                                "Running requests that stand still because their reader is slow.");
  waiting_prompt_tokens =
      make.Gauge("ovq_waiting_prompt_tokens", "Prompt tokens of the waiting requests.");
  prompt_tokens = make.Counter("ovq_prompt_tokens_total", "Prompt tokens absorbed.");
  generated_tokens = make.Counter("ovq_generated_tokens_total", "Tokens generated.");
  preemptions = make.Counter("ovq_preemptions_total",
                             "Requests whose work was thrown away; 0 by construction.");
}

void Metrics::Series::AddLatencies(const Labels& model) {
  Maker make(registry, model);
  first_token =
      make.Histogram("ovq_time_to_first_token_seconds",
                     "Time from a request's arrival to its first token.", kFirstTokenBuckets);
  inter_token = make.Histogram("ovq_inter_token_latency_seconds",
                               "Time between two tokens of one answer.", kInterTokenBuckets);
  time_per_output_token = make.Histogram(
      "ovq_time_per_output_token_seconds",
      "Mean time between the tokens of one answer, of answers with two or more.", kPerTokenBuckets);
  queue = make.Histogram("ovq_request_queue_seconds", "Time a request waited for admission.",
                         kQueueBuckets);
  prefill = make.Histogram("ovq_request_prefill_seconds", "Time a request's prompt took.",
                           kDurationBuckets);
  decode = make.Histogram("ovq_request_decode_seconds", "Time a request's answer took.",
                          kDurationBuckets);
  request_prompt_tokens =
      make.Histogram("ovq_request_prompt_tokens", "Prompt tokens of a request.", kTokenBuckets);
  request_generated_tokens = make.Histogram("ovq_request_generated_tokens",
                                            "Tokens generated by a request.", kTokenBuckets);
  cancel_release = make.Histogram("ovq_cancel_release_seconds",
                                  "Time from a request's cancellation to its memory's release.",
                                  kReleaseBuckets);
  stream_blocked = make.Counter("ovq_stream_blocked_seconds_total",
                                "Time that requests stood still because their reader was slow.");
}

void Metrics::Series::AddSteps(const Labels& model) {
  Maker make(registry, model);
  auto& tokens =
      make.Histograms("ovq_step_tokens", "Tokens of one engine step that had any of the phase.");
  for (size_t i = 0; i < step_tokens.size(); ++i) {
    step_tokens[i] = &tokens.Add({{"phase", kPhases[i]}}, kStepTokenBuckets);
  }
  auto& durations = make.Histograms("ovq_step_duration_seconds",
                                    "Time of one engine step; mixed: it had prefill and decode.");
  for (size_t i = 0; i < kPhases.size(); ++i) {
    step_duration[i] = &durations.Add({{"phase", kPhases[i]}}, kStepBuckets);
  }
}

void Metrics::Series::AddSessions(const Labels& model) {
  Maker make(registry, model);
  auto& sessions = make.Gauges("ovq_sessions", "Live sessions, one-shot requests included.");
  sessions_active = &sessions.Add({{"state", "active"}});
  sessions_idle = &sessions.Add({{"state", "idle"}});
  session_slots = make.Gauge("ovq_session_slots",
                             "Sessions of the model's default cap that fit in the state memory.");
  session_slots_used = make.Gauge(
      "ovq_session_slots_used",
      "Live sessions of any cap; above the slots if many ask for less than the default.");
  auto& bytes = make.Gauges("ovq_session_state_bytes",
                            "Session state: memory held now, promised to live sessions, allowed.");
  state_committed = &bytes.Add({{"kind", "committed"}});
  state_reserved = &bytes.Add({{"kind", "reserved"}});
  state_budget = &bytes.Add({{"kind", "budget"}});
  state_utilization = make.Gauge("ovq_session_state_utilization_ratio",
                                 "Reserved part of the budget: at 1 nothing more is admitted.");
  equivalent_kv_cache = make.Gauge("ovq_equivalent_kv_cache_bytes",
                                   "What the live sessions would need as a full KV cache.");
  centroids_live =
      make.Gauge("ovq_centroids_live", "Live centroids per layer and head, summed over sessions.");
}

void Metrics::Series::AddSessionEvents(const Labels& model) {
  Maker make(registry, model);
  auto& events = make.Counters("ovq_session_events_total", "What happened to sessions.");
  for (const char* event : {"open", "close", "expire"}) {
    session_events[event] = &events.Add({{"event", event}});
  }
  auto& durations = make.Histograms(
      "ovq_session_event_duration_seconds",
      "From a call to its session opened, its prompt absorbed, or closed, its memory given back.");
  for (const char* event : {"open", "close"}) {
    session_event_duration[event] = &durations.Add({{"event", event}}, kEventBuckets);
  }
  session_tokens = make.Histogram(
      "ovq_session_tokens", "Tokens of a session when it was closed or expired.", kTokenBuckets);
}

void Metrics::Series::AddDictionary(const Labels& model) {
  Maker make(registry, model);
  auto& updates = make.Counters(
      "ovq_dictionary_updates_total",
      "Tokens that chunk updates took up, per layer and head: as new centroids or into live ones.");
  dictionary_inserts = &updates.Add({{"op", "insert"}});
  dictionary_merges = &updates.Add({{"op", "merge"}});
  dictionary_fill =
      make.Histogram("ovq_dictionary_fill_ratio",
                     "Live centroids / cap of a request's state at its end.", kRatioBuckets);
}

void Metrics::Series::AddSecurity() {
  Maker make(registry, {});
  auto& failures =
      make.Counters("ovq_auth_failures_total", "Calls that were not let in, by the reason.");
  for (size_t i = 0; i < kAuthFailures.size(); ++i) {
    auth_failures[i] = &failures.Add({{"reason", kAuthFailures[i]}});
  }
  auto& reloads = make.Counters("ovq_credentials_reloads_total",
                                "Changed files of credentials that were read again.");
  for (size_t i = 0; i < kCredentials.size(); ++i) {
    credentials_reloads[i][0] = &reloads.Add({{"what", kCredentials[i]}, {"result", "ok"}});
    credentials_reloads[i][1] = &reloads.Add({{"what", kCredentials[i]}, {"result", "error"}});
  }
  credentials_loaded = &make.Gauges("ovq_credentials_loaded_timestamp_seconds",
                                    "When the credentials in use were read.");
  certificate_expiry = &make.Gauges("ovq_tls_certificate_expiry_timestamp_seconds",
                                    "When the first certificate of the chain in use expires.");
}

void Metrics::Series::AddLog() {
  Maker make(registry, {});
  auto& lines = make.Counters("ovq_log_lines_total", "Lines of the log, by their level.");
  for (size_t i = 0; i < kLogLevels.size(); ++i) {
    log_lines[i] = &lines.Add({{"level", kLogLevels[i]}});
  }
  auto& suppressed = make.Counters(
      "ovq_log_lines_suppressed_total",
      "Lines that were left out: over the rate of their kind, or stderr took nothing.");
  log_lines_over_rate = &suppressed.Add({{"reason", "rate"}});
  log_lines_blocked = &suppressed.Add({{"reason", "blocked"}});
}

void Metrics::Series::AddServer(const MetricsInfo& info, const Labels& model) {
  Maker make(registry, model);
  ready = make.Gauge("ovq_ready", "1 while the server accepts requests.");
  draining = make.Gauge("ovq_draining", "1 from the signal to stop until the end.");
  make.Gauges("ovq_model_info", "The model served; always 1.")
      .Add({{"fingerprint", info.fingerprint},
            {"compute_dtype", info.compute_dtype},
            {"state_dtype", info.state_dtype}})
      .Set(1);

  Maker plain(registry, {});
  plain.Gauges("ovq_build_info", "The program; always 1.").Add({{"version", info.version}}).Set(1);
  auto& memory = plain.Gauges(
      "ovq_device_memory_bytes",
      "Memory of the device, by use; of a GPU, also all of it (total, free), whoever uses it.");
  memory.Add({{"device", info.device}, {"kind", "weights"}})
      .Set(static_cast<double>(info.weight_bytes));
  state_device_memory = &memory.Add({{"device", info.device}, {"kind", "state"}});
  if (info.has_gpu) {
    total_device_memory = &memory.Add({{"device", info.device}, {"kind", "total"}});
    free_device_memory = &memory.Add({{"device", info.device}, {"kind", "free"}});
  }
}

void Metrics::Series::AddProcess() {
  Maker plain(registry, {});
  cpu_seconds = plain.Counter("process_cpu_seconds_total",
                              "Total user and system CPU time spent in seconds.");
  resident_memory = plain.Gauge("process_resident_memory_bytes", "Resident memory size in bytes.");
  virtual_memory = plain.Gauge("process_virtual_memory_bytes", "Virtual memory size in bytes.");
  open_fds = plain.Gauge("process_open_fds", "Number of open file descriptors.");
  max_fds = plain.Gauge("process_max_fds", "Maximum number of open file descriptors.");
  threads = plain.Gauge("process_threads", "Number of threads.");
  plain
      .Gauge("process_start_time_seconds", "Start time of the process since unix epoch in seconds.")
      ->Set(ProcessStartTimeSeconds());
}

}  // namespace ovq
