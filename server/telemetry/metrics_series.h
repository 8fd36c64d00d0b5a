// The time series behind Metrics: one object per label set, made once.
#pragma once

#include <prometheus/counter.h>
#include <prometheus/gauge.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>

#include <array>
#include <map>
#include <string>

#include "server/telemetry/metrics.h"

namespace ovq {

// gRPC's names of the status codes, in the order of their numbers 0 to 16.
inline constexpr std::array<const char *, 17> kStatusNames = {
    "OK",        "CANCELLED",      "UNKNOWN",           "INVALID_ARGUMENT",   "DEADLINE_EXCEEDED",
    "NOT_FOUND", "ALREADY_EXISTS", "PERMISSION_DENIED", "RESOURCE_EXHAUSTED", "FAILED_PRECONDITION",
    "ABORTED",   "OUT_OF_RANGE",   "UNIMPLEMENTED",     "INTERNAL",           "UNAVAILABLE",
    "DATA_LOSS", "UNAUTHENTICATED"};
inline constexpr std::array<const char *, 4> kAuthFailures = {"missing", "malformed", "unknown",
                                                              "forbidden"};  // as AuthFailure
inline constexpr std::array<const char *, 2> kCredentials = {"tls", "tenants"};
inline constexpr std::array<const char *, 3> kPhases = {"prefill", "decode", "mixed"};

struct Metrics::Series {
  using Counter = prometheus::Counter;
  using Gauge = prometheus::Gauge;
  using Histogram = prometheus::Histogram;
  using Buckets = prometheus::Histogram::BucketBoundaries;

  explicit Series(const MetricsInfo &info);

  void Count(const RequestReport &report);
  void Count(const SessionReport &report);

  prometheus::Registry registry;

  std::array<std::array<Counter *, kStatusNames.size()>, kMethods> requests;
  std::array<Histogram *, kMethods> request_duration;
  std::map<FinishReason, Counter *> finished;
  std::map<RejectReason, Counter *> rejections;
  std::map<std::string, Counter *, std::less<>> session_events;
  std::map<std::string, Histogram *, std::less<>> session_event_duration;
  Counter *prompt_tokens, *generated_tokens, *preemptions, *stream_blocked, *cpu_seconds;
  Histogram *first_token, *inter_token, *time_per_output_token, *queue, *prefill, *decode;
  Histogram *request_prompt_tokens, *request_generated_tokens, *cancel_release, *session_tokens;
  // Null for models without a dictionary.
  Counter *dictionary_inserts = nullptr, *dictionary_merges = nullptr;
  Histogram *dictionary_fill = nullptr;
  std::array<Histogram *, 2> step_tokens;  // prefill, decode
  std::array<Histogram *, kPhases.size()> step_duration;

  Gauge *requests_running, *requests_waiting, *requests_blocked, *waiting_prompt_tokens;
  Gauge *sessions_active, *sessions_idle, *session_slots, *session_slots_used;
  Gauge *state_committed, *state_reserved, *state_budget, *state_utilization;
  Gauge *equivalent_kv_cache, *centroids_live, *state_device_memory;
  Gauge *total_device_memory = nullptr, *free_device_memory = nullptr;  // null without a GPU
  Gauge *ready, *draining;
  Gauge *resident_memory, *virtual_memory, *open_fds, *max_fds, *threads;  // of the process

  std::array<Counter *, kLogLevels.size()> log_lines;
  Counter *log_lines_over_rate, *log_lines_blocked;
  std::array<Counter *, kAuthFailures.size()> auth_failures;
  std::array<std::array<Counter *, 2>, kCredentials.size()> credentials_reloads;  // ok, error
  prometheus::Family<Gauge> *credentials_loaded, *certificate_expiry;

 private:
  void AddRequests(const prometheus::Labels &model);
  void AddLatencies(const prometheus::Labels &model);
  void AddSteps(const prometheus::Labels &model);
  void AddSessions(const prometheus::Labels &model);
  void AddSessionEvents(const prometheus::Labels &model);
  void AddDictionary(const prometheus::Labels &model);
  void AddSecurity();
  void AddLog();
  void AddServer(const MetricsInfo &info, const prometheus::Labels &model);
  void AddProcess();
};

}  // namespace ovq
