// The time series behind Metrics, each declared once. What events move are the members here; what
// is read from somewhere, such as the engine's statistics, series.cc reads at each scrape.
#pragma once

#include <prometheus/collectable.h>
#include <prometheus/counter.h>
#include <prometheus/gauge.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>

#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "server/engine/engine.h"
#include "server/telemetry/log.h"
#include "server/telemetry/metric_labels.h"

namespace ovq {

using Buckets = prometheus::Histogram::BucketBoundaries;

// The OpenTelemetry buckets for generative AI, longer at the end: prompts may be a million tokens.
inline const Buckets kFirstTokenBuckets = {.001, .005, .01, .02, .04, .06, .08, .1, .25, .5,
                                           .75,  1,    2.5, 5,   7.5, 10,  20,  40, 80};
inline const Buckets kDurationBuckets = {.01,   .02,   .04,    .08,    .16,   .32,
                                         .64,   1.28,  2.56,   5.12,   10.24, 20.48,
                                         40.96, 81.92, 163.84, 327.68, 655.36};
inline const Buckets kInterTokenBuckets = {.002, .004, .006, .008, .01, .015, .02, .025, .03, .04,
                                           .06,  .08,  .1,   .2,   .4,  .6,   .8,  1,    2,   4};
inline const Buckets kTokenBuckets = {1, 4, 16, 64, 256, 1024, 4096, 16384, 65536, 262144, 1048576};

class Series final : public prometheus::Collectable {
 public:
  using Counter = prometheus::Counter;
  using Gauge = prometheus::Gauge;
  using Histogram = prometheus::Histogram;
  using Labels = prometheus::Labels;
  using Names = std::vector<const char*>;
  template <class T>
  using ByLabel = std::map<std::string_view, T>;

  explicit Series(const MetricsInfo& info);

  // What scrapes read; null ends it, once a scrape that is running is over.
  void SetStats(std::function<EngineStats()> source);
  void SetLog(std::function<LogCounts()> source);
  std::vector<prometheus::MetricFamily> Collect() const override;

  void Count(const StepReport& report);
  void Count(const RequestReport& report);
  void Count(const SessionReport& report);

 private:
  // Families; all series of one have the model's label, or none has.
  prometheus::Family<Counter>& Counters(const char* name, const char* help, bool of_model = true);
  prometheus::Family<Gauge>& Gauges(const char* name, const char* help, bool of_model = true);
  prometheus::Family<Histogram>& Histograms(const char* name, const char* help);
  // A series for each value of the label `key`.
  template <class T, class... Args>
  static ByLabel<T*> Each(prometheus::Family<T>& family, const char* key, const Names& values,
                          const Args&... args) {
    ByLabel<T*> result;
    for (const char* value : values) result[value] = &family.Add({{key, value}}, args...);
    return result;
  }
  // Of one that every enumerator has a name for.
  template <class Enum>
  static Names NamesOf(int count, const char* (*name)(Enum)) {
    Names names;
    for (int i = 0; i < count; ++i) names.push_back(name(static_cast<Enum>(i)));
    return names;
  }
  prometheus::Labels ConstantLabels(bool of_model) const;

  const MetricsInfo info_;
  prometheus::Registry registry_;

 public:
  ByLabel<std::vector<Counter*>> calls;  // by method, then in the order of the status codes
  ByLabel<Histogram*> call_duration =
      Each(Histograms("ovq_request_duration_seconds",
                      "Time from an RPC's arrival to its end; of Chat, the stream."),
           "method", NamesOf(kMethods, MethodName), kDurationBuckets);
  ByLabel<Counter*> finished = Each(
      Counters("ovq_requests_finished_total", "Generation requests that ended, by the reason."),
      "reason", NamesOf(static_cast<int>(FinishReason::kError) + 1, FinishReasonName));
  ByLabel<Counter*> rejections = Each(
      Counters("ovq_admission_rejections_total", "Requests and sessions refused for want of room."),
      "reason", NamesOf(kRejectReasons, RejectReasonName));
  Counter& prompt_tokens = Counters("ovq_prompt_tokens_total", "Prompt tokens absorbed.").Add({});
  Counter& generated_tokens = Counters("ovq_generated_tokens_total", "Tokens generated.").Add({});
  Counter& stream_blocked =
      Counters("ovq_stream_blocked_seconds_total",
               "Time that requests stood still because their reader was slow.")
          .Add({});

  Histogram& first_token = Histograms("ovq_time_to_first_token_seconds",
                                      "Time from a request's arrival to its first token.")
                               .Add({}, kFirstTokenBuckets);
  Histogram& inter_token =
      Histograms("ovq_inter_token_latency_seconds", "Time between two tokens of one answer.")
          .Add({}, kInterTokenBuckets);
  Histogram& time_per_output_token =
      Histograms("ovq_time_per_output_token_seconds",
                 "Mean time between the tokens of one answer, of answers with two or more.")
          .Add({}, Buckets{.01, .025, .05, .075, .1, .15, .2, .3, .4, .5, .75, 1, 2.5});
  Histogram& queue =
      Histograms("ovq_request_queue_seconds", "Time a request waited for admission.")
          .Add({}, Buckets{.001, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60});
  Histogram& prefill = Histograms("ovq_request_prefill_seconds", "Time a request's prompt took.")
                           .Add({}, kDurationBuckets);
  Histogram& decode = Histograms("ovq_request_decode_seconds", "Time a request's answer took.")
                          .Add({}, kDurationBuckets);
  Histogram& request_prompt_tokens =
      Histograms("ovq_request_prompt_tokens", "Prompt tokens of a request.").Add({}, kTokenBuckets);
  Histogram& request_generated_tokens =
      Histograms("ovq_request_generated_tokens", "Tokens generated by a request.")
          .Add({}, kTokenBuckets);
  Histogram& cancel_release =
      Histograms("ovq_cancel_release_seconds",
                 "Time from a request's cancellation to its memory's release.")
          .Add({}, Buckets{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1});

  ByLabel<Histogram*> step_tokens =
      Each(Histograms("ovq_step_tokens", "Tokens of one engine step that had any of the phase."),
           "phase", {"prefill", "decode"},
           Buckets{1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384});
  ByLabel<Histogram*> step_duration =
      Each(Histograms("ovq_step_duration_seconds",
                      "Time of one engine step; mixed: it had prefill and decode."),
           "phase", {"prefill", "decode", "mixed"},
           Buckets{.0005, .001, .002, .004, .008, .016, .032, .064, .128, .256, .512, 1});

  ByLabel<Counter*> session_events =
      Each(Counters("ovq_session_events_total", "What happened to sessions."), "event",
           {"open", "close", "expire"});
  ByLabel<Histogram*> session_event_duration =  // nobody waits for an expiry
      Each(Histograms("ovq_session_event_duration_seconds",
                      "From a call to its session opened, its prompt absorbed, or closed, its "
                      "memory given back."),
           "event", {"open", "close"},
           Buckets{.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5});
  Histogram& session_tokens =
      Histograms("ovq_session_tokens", "Tokens of a session when it was closed or expired.")
          .Add({}, kTokenBuckets);
  // Empty and null for models without a dictionary.
  ByLabel<Counter*> dictionary_updates;
  Histogram* dictionary_fill = nullptr;

  Gauge& ready = Gauges("ovq_ready", "1 while the server accepts requests.").Add({});
  Gauge& draining = Gauges("ovq_draining", "1 from the signal to stop until the end.").Add({});
  ByLabel<Counter*> auth_failures =
      Each(Counters("ovq_auth_failures_total", "Calls that were not let in, by the reason.", false),
           "reason", {kAuthFailures.begin(), kAuthFailures.end()});
  prometheus::Family<Counter>& reloads = Counters(
      "ovq_credentials_reloads_total", "Changed files of credentials that were read again.", false);
  prometheus::Family<Gauge>& credentials_loaded = Gauges(
      "ovq_credentials_loaded_timestamp_seconds", "When the credentials in use were read.", false);
  prometheus::Family<Gauge>& certificate_expiry =
      Gauges("ovq_tls_certificate_expiry_timestamp_seconds",
             "When the first certificate of the chain in use expires.", false);

 private:
  mutable absl::Mutex mutex_;  // also held while a source is read: after null its owner may go
  std::function<EngineStats()> stats_source_ ABSL_GUARDED_BY(mutex_);
  std::function<LogCounts()> log_source_ ABSL_GUARDED_BY(mutex_);
  // As last read: a source that has ended leaves its figures.
  mutable EngineStats stats_ ABSL_GUARDED_BY(mutex_);
  mutable LogCounts log_counts_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace ovq
