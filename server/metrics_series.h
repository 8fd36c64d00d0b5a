// The time series behind Metrics: one object per label set, made once.
#pragma once

#include <prometheus/counter.h>
#include <prometheus/gauge.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>

#include <array>
#include <map>
#include <string>

#include "server/metrics.h"

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

  prometheus::Registry registry;

  std::array<std::array<Counter *, kStatusNames.size()>, kMethods> requests;
  std::array<Histogram *, kMethods> request_duration;
  std::map<FinishReason, Counter *> finished;
  std::map<RejectReason, Counter *> rejections;
  std::map<std::string, Counter *, std::less<>> session_events;
  Counter *prompt_tokens, *generated_tokens, *preemptions, *stream_blocked;
  Histogram *first_token, *inter_token, *queue, *prefill, *decode;
  Histogram *request_prompt_tokens, *request_generated_tokens, *cancel_release;
  std::array<Histogram *, 2> step_tokens;  // prefill, decode
  std::array<Histogram *, kPhases.size()> step_duration;

  Gauge *requests_running, *requests_waiting, *waiting_prompt_tokens;
  Gauge *sessions_active, *sessions_idle;
  Gauge *state_committed, *state_reserved, *state_budget;
  Gauge *equivalent_kv_cache, *centroids_live, *state_device_memory;
  Gauge *total_device_memory = nullptr, *free_device_memory = nullptr;  // null without a GPU
  Gauge *ready, *draining, *resident_memory;

  std::array<Counter *, kAuthFailures.size()> auth_failures;
  std::array<std::array<Counter *, 2>, kCredentials.size()> credentials_reloads;  // ok, error
  prometheus::Family<Gauge> *credentials_loaded, *certificate_expiry;

 private:
  void AddRequests(const prometheus::Labels &model);
  void AddLatencies(const prometheus::Labels &model);
  void AddSteps(const prometheus::Labels &model);
  void AddSessions(const prometheus::Labels &model);
  void AddSecurity();
  void AddProcess(const MetricsInfo &info, const prometheus::Labels &model);
};

}  // namespace ovq
