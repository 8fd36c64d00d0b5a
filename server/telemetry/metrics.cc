#include "server/telemetry/metrics.h"

#include <prometheus/text_serializer.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "server/telemetry/process_stats.h"

namespace ovq::server {
namespace {

using prometheus::Labels;

// prometheus-cpp's counters can only be incremented.
void SetTo(prometheus::Counter& counter, double value) {
  counter.Increment(value - counter.Value());
}

// Each of the functions below sets series that are read at a scrape.
void ReadPrefixes(MetricFamilies& all, const engine::PrefixStats& stats) {
  const auto count = [&all](const char* name, const char* help, int64_t value,
                            const Labels& labels = {}) {
    SetTo(all.Counters(name, help).Add(labels), value);
  };
  count("ovq_prefix_queries_total", "Prompts of which a part may be cached.", stats.queries);
  for (size_t i = 0; i < engine::kPrefixKinds.size(); ++i) {
    const Labels kind = {{"kind", engine::kPrefixKinds[i]}};
    count("ovq_prefix_hits_total",
          "Of these, prompts whose beginning was cached, by where its copy was made.",
          stats.hits[i], kind);
    count("ovq_prefix_cached_tokens_total", "Prompt tokens that were not read but cached.",
          stats.cached_tokens[i], kind);
  }
  count("ovq_prefix_lost_tokens_total",
        "Prompt tokens that earlier ones had, but were read again for want of a copy at their end.",
        stats.lost_tokens);
  for (size_t i = 0; i < engine::kPrefixLosses.size(); ++i) {
    count("ovq_prefix_not_kept_total", "Prompts and answers that left no copy, by the reason.",
          stats.not_kept[i], {{"reason", engine::kPrefixLosses[i]}});
  }
  count("ovq_prefix_evictions_total", "Cached states that were evicted for others.",
        stats.evictions);
  auto& bytes = all.Gauges("ovq_prefix_bytes",
                           "Memory of the host for cached states of prompts: in use, allowed.");
  bytes.Add({{"kind", "used"}}).Set(stats.bytes);
  bytes.Add({{"kind", "budget"}}).Set(stats.budget_bytes);
}

void ReadConstraints(MetricFamilies& all, const engine::ConstraintStats& stats) {
  const auto count = [&all](const char* name, const char* help, double value) {
    SetTo(all.OneCounter(name, help), value);
  };
  count("ovq_constraint_masks_total", "Masks of constrained answers that were looked up or made.",
        static_cast<double>(stats.masks));
  count("ovq_constraint_forced_tokens_total",
        "Tokens that a constraint left no choice of, which the model was not asked for.",
        static_cast<double>(stats.forced_tokens));
  count("ovq_constraint_seconds_total",
        "Time of the engine's thread for masks and places of constrained answers.",
        absl::ToDoubleSeconds(stats.time));
  all.OneGauge("ovq_constraint_matchers", "Constraints whose masks are in memory.")
      .Set(static_cast<double>(stats.matchers));
  auto& bytes = all.Gauges("ovq_constraint_mask_bytes",
                           "Memory of the host for masks of constrained answers: in use, allowed.");
  bytes.Add({{"kind", "used"}}).Set(static_cast<double>(stats.bytes));
  bytes.Add({{"kind", "budget"}}).Set(static_cast<double>(stats.budget_bytes));
}

void ReadShares(MetricFamilies& all, const engine::EngineStats& stats) {
  SetTo(all.OneCounter("ovq_host_seconds_total",
                       "Processor time of the threads that parse, tokenize and write for calls."),
        absl::ToDoubleSeconds(stats.host.used));
  SetTo(all.OneCounter("ovq_host_charged_seconds_total",
                       "What clients came to owe: what the engine's threads waited for a processor "
                       "meanwhile, and copies of states."),
        absl::ToDoubleSeconds(stats.host.owed));
  SetTo(all.OneCounter(
            "ovq_calls_held_total",
            "Times that a client's next call waited because it had used more than its part."),
        static_cast<double>(stats.host.calls_held));
  auto& rows = all.Gauges(
      "ovq_row_seconds", "Time that a row of this kind takes on this machine, as far as is known.");
  for (size_t i = 0; i < engine::kRowKinds.size(); ++i) {
    rows.Add({{"kind", engine::kRowKinds[i]}}).Set(stats.row_seconds[i]);
  }
}

void ReadEngine(MetricFamilies& all, const engine::EngineStats& stats) {
  const auto set = [&all](const char* name, const char* help, auto value,
                          const Labels& labels = {}) {
    all.Gauges(name, help).Add(labels).Set(value);
  };
  set("ovq_requests_running", "Requests that hold a state and run.", stats.requests_running);
  set("ovq_requests_waiting", "Requests that wait for admission.", stats.requests_waiting);
  set("ovq_requests_blocked", "Running requests that stand still because their reader is slow.",
      stats.requests_blocked);
  set("ovq_waiting_prompt_tokens", "Prompt tokens of the waiting requests.",
      stats.waiting_prompt_tokens);
  const char* const sessions = "Live sessions, one-shot requests included.";
  set("ovq_sessions", sessions, stats.sessions_active, {{"state", "active"}});
  set("ovq_sessions", sessions, stats.sessions_idle, {{"state", "idle"}});
  set("ovq_sessions", sessions, stats.sessions_hibernated, {{"state", "hibernated"}});
  set("ovq_session_slots",
      "Sessions of the first cache policy's default cap that fit in the state memory.",
      stats.session_slots);
  set("ovq_session_slots_used",
      "Live sessions of any cap; above the slots if many ask for less than the default.",
      stats.sessions_active + stats.sessions_idle);
  const char* const bytes = "Session state: memory held now, promised to live sessions, allowed.";
  set("ovq_session_state_bytes", bytes, stats.state_bytes_committed, {{"kind", "committed"}});
  set("ovq_session_state_bytes", bytes, stats.state_bytes_reserved, {{"kind", "reserved"}});
  set("ovq_session_state_bytes", bytes, stats.state_bytes_budget, {{"kind", "budget"}});
  set("ovq_session_state_utilization_ratio",
      "Reserved part of the budget: at 1 nothing more is admitted.",
      stats.state_bytes_budget == 0
          ? 0
          : static_cast<double>(stats.state_bytes_reserved) / stats.state_bytes_budget);
  const char* const request_bytes =
      "Memory of the host for calls' messages and answers (--request-memory): held now, allowed.";
  set("ovq_request_memory_bytes", request_bytes, stats.request_bytes, {{"kind", "held"}});
  set("ovq_request_memory_bytes", request_bytes, stats.request_bytes_budget, {{"kind", "budget"}});
  set("ovq_equivalent_kv_cache_bytes",
      "What the live sessions would need as a full KV cache, "
      "0 for a model without attention heads.",
      stats.equivalent_kv_cache_bytes);
  const char* const kept =
      "Memory of the host beside the states, by which sessions go back: their tokens, and copies "
      "of "
      "earlier states.";
  set("ovq_session_history_bytes", kept, stats.token_log_bytes, {{"kind", "tokens"}});
  set("ovq_session_history_bytes", kept, stats.checkpoint_bytes, {{"kind", "checkpoints"}});
  ReadPrefixes(all, stats.prefixes);
  ReadConstraints(all, stats.constraints);
  ReadShares(all, stats);
  set("ovq_centroids_live", "Live centroids per layer and head, summed over sessions.",
      stats.live_slots);
}

void ReadMemory(MetricFamilies& all, const ModelDescription& model,
                const engine::EngineStats& stats) {
  const auto set = [&](const char* kind, size_t bytes) {
    all.Gauges(
           "ovq_device_memory_bytes",
           "Memory of the device, by use; of a GPU, also all of it (total, free), whoever uses it.",
           false)
        .Add({{"device", model.device}, {"kind", kind}})
        .Set(bytes);
  };
  set("weights", model.weight_bytes);
  set("state", stats.state_bytes_committed);
  if (!model.has_gpu) return;
  const kernels::GpuInfo gpu = stats.gpu.value_or(kernels::GpuInfo{});
  set("total", gpu.total_bytes);
  set("free", gpu.free_bytes);
}

void ReadLog(MetricFamilies& all, const LogCounts& counts) {
  const auto set = [](auto& family, const char* key, const char* value, int64_t lines) {
    SetTo(family.Add({{key, value}}), lines);
  };
  auto& written = all.Counters("ovq_log_lines_total", "Lines of the log, by their level.", false);
  for (size_t i = 0; i < kLogLevels.size(); ++i) {
    set(written, "level", kLogLevels[i], counts.written[i]);
  }
  auto& suppressed =
      all.Counters("ovq_log_lines_suppressed_total",
                   "Lines that were left out: over the rate of their kind, or nobody "
                   "read stderr (blocked), or it "
                   "was full or closed (lost).",
                   false);
  set(suppressed, "reason", "rate", counts.over_rate);
  set(suppressed, "reason", "blocked", counts.blocked);
  set(suppressed, "reason", "lost", counts.lost);
}

void ReadTraces(MetricFamilies& all, const TraceCounts& counts) {
  auto& spans =
      all.Counters("ovq_trace_spans_total",
                   "Spans for --trace-collector: sent, dropped because too many waited, or "
                   "failed because it did not take them.",
                   false);
  SetTo(spans.Add({{"result", "sent"}}), counts.sent);
  SetTo(spans.Add({{"result", "dropped"}}), counts.dropped);
  SetTo(spans.Add({{"result", "failed"}}), counts.failed);
}

void ReadProcess(MetricFamilies& all) {
  const ProcessStats stats = ReadProcessStats();
  const auto set = [&all](const char* name, const char* help, auto value) {
    all.Gauges(name, help, false).Add({}).Set(value);
  };
  SetTo(all.Counters("process_cpu_seconds_total",
                     "Total user and system CPU time spent in seconds.", false)
            .Add({}),
        stats.cpu_seconds);
  set("process_resident_memory_bytes", "Resident memory size in bytes.", stats.resident_bytes);
  set("process_virtual_memory_bytes", "Virtual memory size in bytes.", stats.virtual_bytes);
  set("process_open_fds", "Number of open file descriptors.", stats.open_fds);
  set("process_max_fds", "Maximum number of open file descriptors.", stats.max_fds);
  set("process_threads", "Number of threads.", stats.threads);
  set("process_start_time_seconds", "Start time of the process since unix epoch in seconds.",
      ProcessStartTimeSeconds());
}

}  // namespace

Metrics::Metrics(const ModelDescription& model, const CallLabels& labels)
    : MetricFamilies(model.names.front()), model_(model) {
  Each(call_duration_, "method", labels.methods, kDurationBuckets);
  Each(http_duration_, "route", labels.routes, kDurationBuckets);
  for (const char* method : labels.methods) {
    for (int code = 0; code <= static_cast<int>(absl::StatusCode::kUnauthenticated); ++code) {
      const std::string name = absl::StatusCodeToString(static_cast<absl::StatusCode>(code));
      calls_.Add({{"method", method}, {"code", name}});
    }
  }
  if (model.has_dictionary) {
    dictionary_updates_ =
        Each(Counters("ovq_dictionary_updates_total",
                      "Tokens that chunk updates consumed, per layer and head: as "
                      "new slots, or merged into live ones or evicted."),
             "op", std::vector<const char*>{"insert", "merge"});
    dictionary_fill_ = &OneHistogram("ovq_dictionary_fill_ratio",
                                     "Live slots / cap of a request's state at its end.",
                                     {.1, .2, .3, .4, .5, .6, .7, .8, .9, 1});
  }
  for (const char* what : kCredentials) {
    for (const char* result : {"ok", "error"}) reloads_.Add({{"what", what}, {"result", result}});
  }
  Gauges("ovq_model_info", "The model served; always 1.")
      .Add({{"fingerprint", model.fingerprint},
            {"compute_dtype", model.compute_dtype},
            {"weights", model.weights},
            {"state_dtype", model.state_dtype},
            {"memory", model.cache_policies}})
      .Set(1);
  auto& products = Gauges("ovq_matrix_products",
                          "Products with weights that the model was loaded with, by shape: whose "
                          "implementation, and which one, or why our own.");
  for (const kernels::ProductChoice& choice : model.products) {
    products
        .Add({{"inputs", absl::StrCat(choice.in)},
              {"outputs", absl::StrCat(choice.out)},
              {"weights", choice.weights},
              {"product", choice.product},
              {"detail", choice.detail}})
        .Set(choice.count);
  }
  Gauges("ovq_build_info", "The program; always 1.", false).Add({{"version", OVQ_VERSION}}).Set(1);
}

engine::EngineEvents Metrics::Events() {
  const auto observe = [](prometheus::Histogram& histogram) {
    return [&histogram](absl::Duration time) { histogram.Observe(absl::ToDoubleSeconds(time)); };
  };
  engine::EngineEvents events;
  events.first_token = observe(first_token_);
  events.next_token = observe(inter_token_);
  events.time_per_token = observe(time_per_output_token_);
  events.cancel_released = observe(cancel_release_);
  events.stream_blocked = [this](absl::Duration time) {
    stream_blocked_.Increment(absl::ToDoubleSeconds(time));
  };
  events.not_a_number = [this](int64_t) { not_a_number_.Increment(); };
  events.rejected = [this](engine::RejectReason reason) {
    rejections_.at(engine::RejectReasonName(reason))->Increment();
  };
  events.session_event = [this](const engine::SessionReport& report) { Count(report); };
  events.session_imported = [this](engine::ImportKind kind) {
    imports_.at(engine::kImportKinds.at(static_cast<size_t>(kind)))->Increment();
  };
  events.step = [this](const engine::IterationReport& report) { Count(report); };
  events.request_finished = [this](const engine::RequestReport& report) { Count(report); };
  return events;
}

void Metrics::HttpFinished(const char* route, int status, absl::Duration duration) {
  http_calls_.Add({{"route", route}, {"status", absl::StrCat(status)}}).Increment();
  http_duration_.Add({{"route", route}}, kDurationBuckets).Observe(absl::ToDoubleSeconds(duration));
}

void Metrics::HttpBytes(size_t received, size_t sent) {
  http_bytes_.at("received")->Increment(received);
  http_bytes_.at("sent")->Increment(sent);
}

void Metrics::CallFinished(const char* method, absl::StatusCode code, absl::Duration duration) {
  calls_.Add({{"method", method}, {"code", absl::StatusCodeToString(code)}}).Increment();
  call_duration_.Add({{"method", method}}, kDurationBuckets)
      .Observe(absl::ToDoubleSeconds(duration));
}

void Metrics::AuthFailed(AuthFailure reason) {
  auth_failures_.at(kAuthFailures[static_cast<size_t>(reason)])->Increment();
}

void Metrics::ConstraintRefused(ConstraintRefusal cause) {
  constraint_refusals_.at(kConstraintRefusals[static_cast<size_t>(cause)])->Increment();
}

void Metrics::CredentialsLoaded(Credentials what) {
  // The series is absent until then: without TLS there is no certificate.
  credentials_loaded_.Add({{"what", kCredentials[static_cast<size_t>(what)]}}).SetToCurrentTime();
}

void Metrics::CredentialsReloaded(Credentials what, bool ok) {
  reloads_.Add({{"what", kCredentials[static_cast<size_t>(what)]}, {"result", ok ? "ok" : "error"}})
      .Increment();
  if (ok) CredentialsLoaded(what);
}

void Metrics::SetCertificateExpiry(absl::Time time) {
  certificate_expiry_.Add({}).Set(absl::ToUnixSeconds(time));
}

void Metrics::Scraped(size_t bytes, absl::Duration duration) {
  scrapes_.Increment();
  scraped_bytes_.Increment(bytes);
  scrape_duration_.Observe(absl::ToDoubleMicroseconds(duration));
}

std::string Metrics::Text() { return prometheus::TextSerializer().Serialize(Collect()); }

std::vector<prometheus::MetricFamily> Metrics::Collect() {
  absl::MutexLock lock(&mutex_);
  const auto& [read_stats, read_log, read_traces, read_store] = sources_;
  if (read_stats) stats_ = read_stats();
  if (read_log) log_counts_ = read_log();
  ReadEngine(*this, stats_);
  SetTo(*rejections_.at(engine::RejectReasonName(engine::RejectReason::kRequestMemory)),
        static_cast<double>(stats_.request_refusals));
  ReadMemory(*this, model_, stats_);
  ReadLog(*this, log_counts_);
  if (read_traces) ReadTraces(*this, read_traces());
  if (read_store) owned_sessions.Set(static_cast<double>(read_store().owned));
  ReadProcess(*this);
  return registry().Collect();
}

Metrics::Tokens Metrics::BatchTokens() const {
  const auto sum = [this](const char* phase) {
    return static_cast<uint64_t>(batch_tokens_.at(phase)->Collect().histogram.sample_sum);
  };
  return {.prompt = sum("prefill"), .generated = sum("decode")};
}

void Metrics::Count(const engine::IterationReport& report) {
  if (report.prefill_tokens > 0) batch_tokens_.at("prefill")->Observe(report.prefill_tokens);
  if (report.decode_tokens > 0) {
    batch_tokens_.at("decode")->Observe(report.decode_tokens + report.accepted_tokens);
  }
  if (report.drafted_tokens > 0) {
    drafted_tokens_.Increment(report.drafted_tokens);
    accepted_tokens_.Increment(report.accepted_tokens);
  }
  iteration_duration_
      .at(report.decode_tokens == 0    ? "prefill"
          : report.prefill_tokens == 0 ? "decode"
                                       : "mixed")
      ->Observe(absl::ToDoubleSeconds(report.duration));
  if (report.dictionary_inserts + report.dictionary_merges > 0) {
    dictionary_updates_.at("insert")->Increment(report.dictionary_inserts);
    dictionary_updates_.at("merge")->Increment(report.dictionary_merges);
  }
}

void Metrics::Count(const engine::RequestReport& report) {
  const engine::Usage& usage = report.usage;
  queue_.Observe(absl::ToDoubleSeconds(usage.queue_time));
  prefill_.Observe(absl::ToDoubleSeconds(usage.prefill_time));
  prompt_tokens_.Increment(usage.prompt_tokens);
  request_prompt_tokens_.Observe(usage.prompt_tokens);
  if (report.dictionary_fill && dictionary_fill_ != nullptr) {
    dictionary_fill_->Observe(*report.dictionary_fill);
  }
  if (report.score) return;  // Score generates nothing
  finished_.at(engine::FinishReasonName(report.reason))->Increment();
  decode_.Observe(absl::ToDoubleSeconds(usage.decode_time));
  generated_tokens_.Increment(usage.generated_tokens);
  request_generated_tokens_.Observe(usage.generated_tokens);
}

void Metrics::Count(const store::StoreReport& report) {
  disk_bytes_.at(report.kind)->Increment(report.bytes);
  if (!report.status.ok()) disk_errors_.at(report.kind)->Increment();
  if (absl::IsAborted(report.status) || absl::IsUnknown(report.status)) fenced_writes_.Increment();
  disk_duration_.at(report.kind)->Observe(absl::ToDoubleSeconds(report.duration));
}

void Metrics::Count(const engine::SessionReport& report) {
  session_events_.at(report.event)->Increment();
  const auto duration = session_event_duration_.find(report.event);
  if (duration != session_event_duration_.end()) {
    duration->second->Observe(absl::ToDoubleSeconds(report.duration));
  }
  replayed_tokens_.Increment(report.replayed);
  const std::string_view event = report.event;
  if (event == "close" || event == "expire" || event == "give_way") {
    session_tokens_.Observe(report.position);
  }
}

}  // namespace ovq::server
