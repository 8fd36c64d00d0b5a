// Prometheus metrics of one server. Label sets exist from the start, so that the rate of an error
// that has not happened yet is zero, not absent. Session and user ids are never labels.
//
// Each series is declared once: series that events move are members of Metrics; series that are
// read, such as the engine's statistics, are declared in metrics.cc and read at each scrape.
#pragma once

#include <prometheus/counter.h>
#include <prometheus/gauge.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>
#include <prometheus/summary.h>

#include <array>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "kernels/common/product_choices.h"
#include "server/engine/common/engine_config.h"
#include "server/store/session_store.h"
#include "server/telemetry/log.h"
#include "server/telemetry/trace_export.h"

namespace ovq::server {

// The model that is served, for GetModelInfo and the metrics.
struct ModelDescription {
  // Names that callers may use; the first is shown, and is the label `model` of every family.
  std::vector<std::string> names = {""};
  std::string fingerprint;
  int64_t hidden_size = 0;
  int64_t parameters = 0;
  std::optional<int32_t> bos_token_id;
  std::string device;
  std::string compute_dtype;
  std::string weights;  // type of most of them: "f32", "bf16", "int8"
  std::vector<kernels::ProductChoice> products;
  std::string state_dtype;
  std::string cache_policies;  // those to choose from, with commas between
  size_t weight_bytes = 0;
  bool has_gpu = false;         // GPU memory is reported, too
  bool has_dictionary = false;  // some layer has slots up to a cap
};

// --- values of labels ---

// The values that calls have for the labels `method` and `route`.
struct CallLabels {
  std::vector<const char*> methods;  // RPCs
  std::vector<const char*> routes;   // patterns of the HTTP front's paths
};

// Why the HTTP front closed a connection that did nothing wrong.
inline constexpr std::array<const char*, 4> kHttpRefusals = {"max_connections", "idle", "gave_way",
                                                             "tls"};

// The reason why a call was not admitted.
enum class AuthFailure : uint8_t { kMissing, kMalformed, kUnknown, kForbidden };
inline constexpr std::array<const char*, 4> kAuthFailures = {"missing", "malformed", "unknown",
                                                             "forbidden"};
// Credentials that are read from files, and again when these change.
enum class Credentials : uint8_t { kTls, kTenants };
inline constexpr std::array<const char*, 2> kCredentials = {"tls", "tenants"};

// Why a constraint was refused: it cannot be kept, it would be too large, or there is no memory.
enum class ConstraintRefusal : uint8_t { kForm, kSize, kMemory };
inline constexpr std::array<const char*, 3> kConstraintRefusals = {"form", "size", "memory"};

using Buckets = prometheus::Histogram::BucketBoundaries;

// OpenTelemetry's buckets for generative AI, with more at the end: prompts may be a million tokens.
inline const Buckets kFirstTokenBuckets = {.001, .005, .01, .02, .04, .06, .08, .1, .25, .5,
                                           .75,  1,    2.5, 5,   7.5, 10,  20,  40, 80};
inline const Buckets kDurationBuckets = {.01,   .02,   .04,    .08,    .16,   .32,
                                         .64,   1.28,  2.56,   5.12,   10.24, 20.48,
                                         40.96, 81.92, 163.84, 327.68, 655.36};
inline const Buckets kInterTokenBuckets = {.002, .004, .006, .008, .01, .015, .02, .025, .03, .04,
                                           .06,  .08,  .1,   .2,   .4,  .6,   .8,  1,    2,   4};
inline const Buckets kTokenBuckets = {1, 4, 16, 64, 256, 1024, 4096, 16384, 65536, 262144, 1048576};

// The families of one registry, each made by the first call for its name.
class MetricFamilies {
  // Above the functions that need its type.
  template <class Builder>
  auto& Register(Builder builder, const char* name, const char* help, bool of_model) {
    return builder.Name(name)
        .Help(help)
        .Labels(of_model ? model_labels_ : prometheus::Labels())
        .Register(registry_);
  }

 public:
  using Counter = prometheus::Counter;
  using Gauge = prometheus::Gauge;
  using Histogram = prometheus::Histogram;
  template <class T>
  using ByLabel = std::map<std::string_view, T>;

  explicit MetricFamilies(std::string model) : model_labels_{{"model", std::move(model)}} {}

  // of_model: their series have the model's label.
  prometheus::Family<Counter>& Counters(const char* name, const char* help, bool of_model = true) {
    return Register(prometheus::BuildCounter(), name, help, of_model);
  }
  prometheus::Family<Gauge>& Gauges(const char* name, const char* help, bool of_model = true) {
    return Register(prometheus::BuildGauge(), name, help, of_model);
  }
  prometheus::Family<Histogram>& Histograms(const char* name, const char* help) {
    return Register(prometheus::BuildHistogram(), name, help, true);
  }
  // The only series of a family.
  Counter& OneCounter(const char* name, const char* help, bool of_model = true) {
    return Counters(name, help, of_model).Add({});
  }
  Gauge& OneGauge(const char* name, const char* help, bool of_model = true) {
    return Gauges(name, help, of_model).Add({});
  }
  Histogram& OneHistogram(const char* name, const char* help, const Buckets& buckets) {
    return Histograms(name, help).Add({}, buckets);
  }
  // Adds a series for each value of the label `key`.
  template <class T, class Values = std::vector<const char*>, class... Args>
  static ByLabel<T*> Each(prometheus::Family<T>& family, const char* key, const Values& values,
                          const Args&... args) {
    ByLabel<T*> result;
    for (const char* value : values) result[value] = &family.Add({{key, value}}, args...);
    return result;
  }
  prometheus::Registry& registry() { return registry_; }

 private:
  const prometheus::Labels model_labels_;
  prometheus::Registry registry_;
};

// Figures of the session store.
struct StoreFigures {
  size_t owned = 0;  // sessions that this server owns
};

// Any thread. Series that others set are public members.
class Metrics : private MetricFamilies {
 public:
  // labels: their series exist from the start; a call with another label gets its series at its
  // end.
  explicit Metrics(const ModelDescription& model, const CallLabels& labels = {});

  // Callbacks for an Engine that this object outlives.
  engine::EngineEvents Events();
  // Sets what every scrape reads: the engine's gauges (EngineStats), the counts of log lines
  // (LogCounts), the counts of spans (TraceCounts; without a source there is no such metric), or
  // the figures of the session store (StoreFigures).
  // Null removes a source and waits for a scrape that is reading it.
  template <class T>
  void SetSource(std::function<T()> source) {
    absl::MutexLock lock(&mutex_);
    std::get<std::function<T()>>(sources_) = std::move(source);
  }
  // Work in --session-dir or --session-store.
  void Count(const store::StoreReport& report);
  // Tokens of all iterations so far: of prompts, and generated.
  struct Tokens {
    uint64_t prompt = 0, generated = 0;
  };
  Tokens BatchTokens() const;
  void CallFinished(const char* method, absl::StatusCode code, absl::Duration duration);
  void HttpFinished(const char* route, int status, absl::Duration duration);
  void HttpBytes(size_t received, size_t sent);
  void AuthFailed(AuthFailure reason);
  void ConstraintRefused(ConstraintRefusal cause);
  void CredentialsLoaded(Credentials what);             // at the start
  void CredentialsReloaded(Credentials what, bool ok);  // later
  void SetCertificateExpiry(absl::Time time);

  // One answer of the endpoint that serves Text: its bytes and the time to make it.
  void Scraped(size_t bytes, absl::Duration duration);
  std::string Text();  // the exposition format, as a scrape sees it
  std::vector<prometheus::MetricFamily> Collect();

  Gauge& ready = OneGauge("ovq_ready", "1 while the server accepts requests and no step hangs.");
  Gauge& draining = OneGauge("ovq_draining", "1 from the signal to stop until the end.");
  Counter& iteration_timeouts =
      OneCounter("ovq_step_timeouts_total", "Steps that took longer than --step-timeout.");
  Gauge& damaged_sessions = OneGauge(
      "ovq_session_files_damaged",
      "Sessions whose files the last start quarantined, or could not read and left alone.");
  Gauge& owned_sessions = OneGauge(
      "ovq_sessions_owned", "Sessions in --session-dir or --session-store that this server owns.");
  Gauge& http_connections = OneGauge("ovq_http_connections", "Open connections of the HTTP front.");
  Gauge& http_streams = OneGauge("ovq_http_open_streams", "Answers being streamed over HTTP.");
  ByLabel<Counter*> http_refusals =
      Each(Counters("ovq_http_connections_refused_total",
                    "Connections that --http-max-connections had no room for; idle, gave_way: "
                    "ended for others; tls: without a certificate that can be used."),
           "reason", kHttpRefusals);
  Histogram& constraint_compile = OneHistogram(
      "ovq_constraint_compile_seconds", "Time to compile a constraint that was not kept.",
      Buckets{.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5});
  Counter& constraint_hits = OneCounter("ovq_constraint_cache_hits_total",
                                        "Constraints of requests that were compiled already.");
  Gauge& constraint_bytes =
      OneGauge("ovq_constraint_cache_bytes", "Bytes of compiled constraints that are kept.");

 private:
  void Count(const engine::IterationReport& report);
  void Count(const engine::RequestReport& report);
  void Count(const engine::SessionReport& report);

  const ModelDescription model_;

  prometheus::Family<Counter>& calls_ =
      Counters("ovq_requests_total", "RPCs that ended, by gRPC status code.");
  prometheus::Family<Histogram>& call_duration_ =
      Histograms("ovq_request_duration_seconds",
                 "Time from an RPC's arrival to its end; of Chat, the stream.");
  prometheus::Family<Counter>& http_calls_ =
      Counters("ovq_http_requests_total",
               "Requests over HTTP that ended, by status; 499: the client had gone.");
  prometheus::Family<Histogram>& http_duration_ =
      Histograms("ovq_http_request_duration_seconds",
                 "Time from an HTTP request's arrival to the end of its answer.");
  ByLabel<Counter*> http_bytes_ =
      Each(Counters("ovq_http_bytes_total", "Bytes of HTTP, TLS taken off."), "direction",
           {"received", "sent"});
  ByLabel<Counter*> finished_ = Each(
      Counters("ovq_requests_finished_total", "Generation requests that ended, by the reason."),
      "reason", engine::kFinishReasons);
  ByLabel<Counter*> rejections_ = Each(
      Counters("ovq_admission_rejections_total", "Requests and sessions refused for want of room."),
      "reason", engine::kRejectReasons);
  Counter& prompt_tokens_ =
      OneCounter("ovq_prompt_tokens_total", "Prompt tokens, cached ones included.");
  Counter& generated_tokens_ = OneCounter("ovq_generated_tokens_total", "Tokens generated.");
  Counter& drafted_tokens_ =
      OneCounter("ovq_drafted_tokens_total", "Tokens that were guessed and checked (--speculate).");
  Counter& accepted_tokens_ =
      OneCounter("ovq_accepted_tokens_total", "Guessed tokens that were right, hence generated.");
  Counter& not_a_number_ =
      OneCounter("ovq_nonfinite_logits_total",
                 "Calls that ended because the model's output was not a number.");
  Counter& stream_blocked_ =
      OneCounter("ovq_stream_blocked_seconds_total",
                 "Time that requests stood still because their reader was slow.");

  Histogram& first_token_ =
      OneHistogram("ovq_time_to_first_token_seconds",
                   "Time from a request's arrival to its first token.", kFirstTokenBuckets);
  Histogram& inter_token_ =
      OneHistogram("ovq_inter_token_latency_seconds", "Time between two tokens of one answer.",
                   kInterTokenBuckets);
  Histogram& time_per_output_token_ =
      OneHistogram("ovq_time_per_output_token_seconds",
                   "Mean time between the tokens of one answer, of answers with two or more.",
                   Buckets{.01, .025, .05, .075, .1, .15, .2, .3, .4, .5, .75, 1, 2.5});
  Histogram& queue_ =
      OneHistogram("ovq_request_queue_seconds", "Time a request waited for admission.",
                   Buckets{.001, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60});
  Histogram& prefill_ = OneHistogram("ovq_request_prefill_seconds", "Time a request's prompt took.",
                                     kDurationBuckets);
  Histogram& decode_ =
      OneHistogram("ovq_request_decode_seconds", "Time a request's answer took.", kDurationBuckets);
  Histogram& request_prompt_tokens_ =
      OneHistogram("ovq_request_prompt_tokens", "Prompt tokens of a request.", kTokenBuckets);
  Histogram& request_generated_tokens_ =
      OneHistogram("ovq_request_generated_tokens", "Tokens generated by a request.", kTokenBuckets);
  Histogram& cancel_release_ = OneHistogram(
      "ovq_cancel_release_seconds", "Time from a request's cancellation to its memory's release.",
      Buckets{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1});

  ByLabel<Histogram*> batch_tokens_ =
      Each(Histograms("ovq_step_tokens", "Tokens of one engine step that had any of the phase."),
           "phase", {"prefill", "decode"},
           Buckets{1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384});
  ByLabel<Histogram*> iteration_duration_ =
      Each(Histograms("ovq_step_duration_seconds",
                      "Time of one engine step; mixed: it had prefill and decode."),
           "phase", {"prefill", "decode", "mixed"},
           Buckets{.0005, .001, .002, .004, .008, .016, .032, .064, .128, .256, .512, 1});

  ByLabel<Counter*> session_events_ =
      Each(Counters("ovq_session_events_total", "What happened to sessions."), "event",
           {"open", "fork", "rewind", "export", "export_delta", "import", "close", "expire",
            "give_way", "wake", "hibernate", "take_over", "let_go", "lost"});
  ByLabel<Histogram*> session_event_duration_ =  // without expiry, which nobody waits for
      Each(Histograms(
               "ovq_session_event_duration_seconds",
               "From a call to its session opened, its prompt prefilled, or copied, or rewound, "
               "its tokens replayed, or its state copied out or in, or closed, its memory "
               "released; wake: to its state swapped in; take_over: to the session owned here."),
           "event",
           {"open", "fork", "rewind", "export", "export_delta", "import", "close", "wake",
            "take_over"},
           Buckets{.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5});
  ByLabel<Counter*> imports_ =
      Each(Counters("ovq_session_imports_total",
                    "Imported sessions, by where their state came from: replayed, their tokens "
                    "were read again; signed, the file's, signed by a fleet key; trusted, the "
                    "file's, as --imports trust takes any."),
           "state", engine::kImportKinds);
  static constexpr std::array<const char*, 9> kDiskWork = {
      "append", "create", "snapshot", "remove", "read", "text", "acquire", "release", "lease"};
  ByLabel<Counter*> disk_bytes_ =
      Each(Counters("ovq_session_disk_bytes_total",
                    "Of --session-dir or --session-store: bytes written, or read."),
           "kind", kDiskWork);
  ByLabel<Counter*> disk_errors_ =
      Each(Counters("ovq_session_disk_errors_total",
                    "Of --session-dir or --session-store: what could not be done."),
           "kind", kDiskWork);
  ByLabel<Histogram*> disk_duration_ = Each(
      Histograms("ovq_session_disk_duration_seconds",
                 "Of --session-dir or --session-store: from work that is asked for to its being "
                 "done; append is "
                 "what a turn waits for at its end."),
      "kind", kDiskWork,
      Buckets{.0001, .00025, .0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10});
  Counter& fenced_writes_ =
      OneCounter("ovq_session_writes_fenced_total",
                 "Writes that the session store refused, because another server has the session.");
  Counter& replayed_tokens_ =
      OneCounter("ovq_replayed_tokens_total",
                 "Tokens that were read again to take sessions back, or to wake them.");
  Histogram& session_tokens_ =
      OneHistogram("ovq_session_tokens",
                   "Tokens of a session when it was closed, expired or evicted.", kTokenBuckets);
  // Empty and null for models without a dictionary.
  ByLabel<Counter*> dictionary_updates_;
  Histogram* dictionary_fill_ = nullptr;

  ByLabel<Counter*> constraint_refusals_ =
      Each(Counters("ovq_constraint_refusals_total",
                    "Constraints that were refused: no such form can be kept, it is beyond a size, "
                    "or there is no memory."),
           "cause", kConstraintRefusals);
  ByLabel<Counter*> auth_failures_ =
      Each(Counters("ovq_auth_failures_total", "Calls that were not let in, by the reason.", false),
           "reason", kAuthFailures);
  prometheus::Family<Counter>& reloads_ = Counters(
      "ovq_credentials_reloads_total", "Changed files of credentials that were read again.", false);
  prometheus::Family<Gauge>& credentials_loaded_ = Gauges(
      "ovq_credentials_loaded_timestamp_seconds", "When the credentials in use were read.", false);
  prometheus::Family<Gauge>& certificate_expiry_ =
      Gauges("ovq_tls_certificate_expiry_timestamp_seconds",
             "When the first certificate of the chain in use expires.", false);

  Counter& scraped_bytes_ =
      OneCounter("exposer_transferred_bytes_total", "Transferred bytes to metrics services", false);
  Counter& scrapes_ =
      OneCounter("exposer_scrapes_total", "Number of times metrics were scraped", false);
  prometheus::Summary& scrape_duration_ =
      prometheus::BuildSummary()
          .Name("exposer_request_latencies")
          .Help("Latencies of serving scrape requests, in microseconds")
          .Register(registry())
          .Add({}, prometheus::Summary::Quantiles{{.5, .05}, {.9, .01}, {.99, .001}});

  absl::Mutex mutex_;  // held while a source is read, so its owner may end after SetSource(null)
  std::tuple<std::function<engine::EngineStats()>, std::function<LogCounts()>,
             std::function<TraceCounts()>, std::function<StoreFigures()>>
      sources_ ABSL_GUARDED_BY(mutex_);
  // The last figures read, kept when a source is removed.
  engine::EngineStats stats_ ABSL_GUARDED_BY(mutex_);
  LogCounts log_counts_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace ovq::server
