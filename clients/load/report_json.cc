#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "clients/load/report.h"

namespace ovq::load {
namespace {

using Json = nlohmann::ordered_json;

Json ToJson(const Summary& s) {
  return {{"count", s.samples.size()},
          {"mean", s.mean},
          {"std", s.std},
          {"max", s.max},
          {"p50", s.p50},
          {"p90", s.p90},
          {"p95", s.p95},
          {"p99", s.p99}};
}

// Adds the keys of `vllm bench serve`, and the maximum.
void AddSummary(Json& out, const std::string& name, const Summary& s) {
  for (const auto& [statistic, value] :
       {std::pair("mean", s.mean), std::pair("median", s.p50), std::pair("std", s.std),
        std::pair("p50", s.p50), std::pair("p90", s.p90), std::pair("p95", s.p95),
        std::pair("p99", s.p99), std::pair("max", s.max)}) {
    out[absl::StrCat(statistic, "_", name, "_ms")] = value;
  }
}

Json ToJson(const ErrorCount& errors) {
  return {{"count", errors.count}, {"first_message", errors.first_message}};
}

Json OwnFigures(const Level& level) {
  const Report& r = level.report;
  Json out;
  out["cut_off"] = r.cut_off;
  out["unsent"] = level.run.unsent;
  out["abandoned"] = level.run.abandoned;
  out["outlasted"] = level.run.outlasted;
  out["interrupted"] = level.run.interrupted;
  out["errors"] = Json::object();
  for (const auto& [code, error] : r.errors) out["errors"][code] = ToJson(error);
  out["delete_errors"] = ToJson(level.run.delete_errors);
  out["good_fraction"] = r.good ? Json(r.good_fraction()) : Json(nullptr);
  out["max_in_flight"] = r.max_in_flight;
  out["client_cpu_cores"] = level.client_cpu;
  out["send_delay_ms"] = ToJson(r.send_delay_ms);
  out["create_session_ms"] = ToJson(r.create_ms);
  out["server_queue_ms"] = ToJson(r.queue_ms);
  out["server_prefill_ms"] = ToJson(r.prefill_ms);
  out["server_decode_ms"] = ToJson(r.decode_ms);
  out["state_bytes"] = ToJson(r.state_bytes);
  out["tokens_per_chunk"] = ToJson(r.tokens_per_chunk);
  return out;
}

// Adds the figures of one run under their `vllm bench serve` names.
void AddFigures(Json& out, const Report& r) {
  out["duration"] = r.duration_s;
  out["completed"] = r.completed;
  out["failed"] = r.failed;
  out["total_input_tokens"] = r.input_tokens;
  out["total_output_tokens"] = r.output_tokens;
  out["request_throughput"] = r.request_throughput;
  out["request_goodput"] = r.good ? Json(r.goodput()) : Json(nullptr);
  out["output_throughput"] = r.output_throughput;
  out["total_token_throughput"] = r.total_throughput;
  AddSummary(out, "ttft", r.ttft_ms);
  AddSummary(out, "tpot", r.tpot_ms);
  AddSummary(out, "itl", r.inter_token_ms);
  AddSummary(out, "e2el", r.e2e_ms);
}

// Adds lists with one element for each request, in the order of their starts; times in seconds.
void AddDetails(Json& out, const Level& level) {
  std::vector<const Record*> records;
  for (const Record& record : level.run.records) records.push_back(&record);
  std::stable_sort(records.begin(), records.end(),
                   [](const Record* a, const Record* b) { return a->start < b->start; });
  for (const char* name : {"input_lens", "output_lens", "ttfts", "itls", "latencies", "start_times",
                           "queue_times", "errors"}) {
    out[name] = Json::array();
  }
  for (const Record* record : records) {
    const Latencies latencies = ComputeLatencies(*record);
    std::vector<double> gaps = latencies.inter_token;
    for (double& gap : gaps) gap /= 1e3;
    const absl::Status& status = record->outcome.status;
    out["input_lens"].push_back(record->completed() ? record->outcome.usage.prompt_tokens
                                                    : record->input_tokens);
    out["output_lens"].push_back(record->outcome.tokens());
    out["ttfts"].push_back(latencies.ttft / 1e3);
    out["itls"].push_back(gaps);
    out["latencies"].push_back(latencies.e2e / 1e3);
    out["start_times"].push_back(SecondsBetween(records[0]->start, record->start));
    out["queue_times"].push_back(record->outcome.usage.queue_s);
    out["errors"].push_back(status.ok() ? std::string() : status.ToString());
  }
}

Json LevelJson(const Level& level) {
  Json out = {{"load", level.load}, {"verdict", level.verdict}};
  AddFigures(out, level.report);
  out["ovq"] = OwnFigures(level);
  return out;
}

}  // namespace

std::string JsonReport(const Result& result) {
  const Options& options = result.options;
  const Level& level = result.main_level();
  Json out;
  out["date"] = result.started;
  out["backend"] = "ovq";
  out["model_id"] = result.model.name;
  out["num_prompts"] = level.run.records.size();
  out["request_rate"] = options.rate ? Json(level.load) : Json("inf");
  out["burstiness"] = options.plan.arrivals.burstiness;
  out["max_concurrency"] = options.open_loop() ? Json(options.most_in_flight()) : Json(level.load);
  AddFigures(out, level.report);
  if (options.output.detailed) AddDetails(out, level);
  Json own = OwnFigures(level);
  own["load"] = DescribeLoad(options, level.load);
  own["command_line"] = result.command_line;
  own["host"] = result.host;
  own["options"] = Json::object();  // every option that has a value, defaults included
  for (const Setting& setting : options.settings) own["options"][setting.name] = setting.value;
  own["target"] = options.connect.server;
  own["seed"] = options.work.seed;
  own["warmup"] = options.warmup;
  own["model"] = {{"name", result.model.name},
                  {"fingerprint", result.model.fingerprint},
                  {"device", result.model.device},
                  {"server_version", result.model.server_version}};
  if (options.sweep.on) {
    own["sweep"] = Json::array();
    for (const Level& each : result.levels) own["sweep"].push_back(LevelJson(each));
    own["best_load"] = result.best ? Json(level.load) : Json(nullptr);
  }
  out["ovq"] = std::move(own);
  // Error messages come from the network: invalid UTF-8 is replaced.
  return out.dump(1, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace ovq::load
