// The page of metrics: every series against figures worked out by hand.
#include <algorithm>
#include <chrono>
#include <fstream>
#include <thread>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/synchronization/notification.h"
#include "server/apis/http_api.h"
#include "server/calls/rpc_labels.h"
#include "server/engine/common/prefix_cache.h"
#include "tests/server/server_test_util.h"

namespace ovq::server::test {
namespace {

using testing::HasSubstr;

// The value of the first sample of this name with these labels; -1 if there is none.
double Sample(const std::string& text, const std::string& name,
              const std::vector<std::string>& labels) {
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    if (line.substr(0, line.find_first_of("{ ")) != name) continue;
    const bool all = std::all_of(labels.begin(), labels.end(), [&](const std::string& label) {
      return line.find(label) != absl::string_view::npos;
    });
    double value = 0;
    if (all && absl::SimpleAtod(line.substr(line.rfind(' ') + 1), &value)) return value;
  }
  return -1;
}

ModelDescription Named(bool has_dictionary) {
  ModelDescription info;
  info.names = {"m"};
  info.has_dictionary = has_dictionary;
  return info;
}

// The page once the engine's thread has ended.
std::string TextAfter(const std::function<void(engine::test::TestEngine&)>& run) {
  Metrics metrics(Named(true));
  engine::test::TestEngine engine({}, {}, metrics.Events());
  run(engine);
  engine.Destroy();
  return metrics.Text();
}

constexpr auto kEvents = {"open",         "fork",   "rewind", "export",
                          "export_delta", "import", "close",  "expire"};

TEST(Metrics, EveryLabelSetExistsFromTheStart) {
  const CallLabels labels = {.methods = RpcLabels(), .routes = HttpRouteLabels()};
  const std::string text = Metrics(Named(true), labels).Text();
  for (const char* event : kEvents) {
    const std::string label = absl::StrCat("event=\"", event, "\"");
    EXPECT_EQ(Sample(text, "ovq_session_events_total", {label}), 0);
    const bool timed = std::string(event) != "expire";  // nobody waits for expiry
    EXPECT_EQ(Sample(text, "ovq_session_event_duration_seconds_count", {label}), timed ? 0 : -1);
  }
  for (const char* op : {"insert", "merge"}) {
    EXPECT_EQ(Sample(text, "ovq_dictionary_updates_total", {absl::StrCat("op=\"", op, "\"")}), 0);
  }
  for (const char* name : labels.routes) {
    EXPECT_EQ(Sample(text, "ovq_http_request_duration_seconds_count",
                     {absl::StrCat("route=\"", name, "\"")}),
              0)
        << name;
  }
  for (const char* name : labels.methods) {
    const std::string method = absl::StrCat("\"", name, "\"");
    EXPECT_EQ(Sample(text, "ovq_request_duration_seconds_count", {method}), 0) << method;
    EXPECT_EQ(Sample(text, "ovq_requests_total", {method, "\"OK\""}), 0) << method;
    EXPECT_EQ(Sample(text, "ovq_requests_total", {method, "\"UNAUTHENTICATED\""}), 0) << method;
  }
  for (const char* name :
       {"ovq_time_per_output_token_seconds", "ovq_session_tokens", "ovq_dictionary_fill_ratio"}) {
    EXPECT_EQ(Sample(text, absl::StrCat(name, "_count"), {"model=\"m\""}), 0) << name;
  }
}

TEST(Metrics, ProductsOfEveryShape) {
  ModelDescription info = Named(false);
  info.products = {{64, 384, "bf16", "cuBLASLt", "algorithm 66, tile 20, stages 8", 21},
                   {64, 258, "bf16", "own", "rows are no multiples of 16 bytes"}};
  const std::string text = Metrics(info).Text();
  EXPECT_EQ(Sample(text, "ovq_matrix_products",
                   {"inputs=\"64\"", "outputs=\"384\"", "weights=\"bf16\"", "product=\"cuBLASLt\"",
                    "detail=\"algorithm 66, tile 20, stages 8\""}),
            21);
  EXPECT_EQ(Sample(text, "ovq_matrix_products",
                   {"outputs=\"258\"", "product=\"own\"",
                    "detail=\"rows are no multiples of 16 bytes\""}),
            1);
  EXPECT_THAT(Metrics(Named(false)).Text(), testing::Not(HasSubstr("ovq_matrix_products{")));
}

TEST(Metrics, ModelsWithoutADictionaryHaveNoFigureOfOne) {
  Metrics metrics(Named(false));
  const engine::EngineEvents events = metrics.Events();
  events.step({.prefill_tokens = 4, .duration = absl::Milliseconds(1)});
  events.request_finished({.reason = engine::FinishReason::kStop, .usage = {}});
  EXPECT_THAT(metrics.Text(), testing::Not(HasSubstr("ovq_dictionary")));
}

// By hand: 30 + 9 tokens consumed with chunks of 4 and a cap of 256 are 36 tokens in the
// dictionary, floor(256 * 36 / (256 + 36)) = 31 of them as centroids of their own.
TEST(Metrics, Dictionary) {
  const std::string text = TextAfter([](engine::test::TestEngine& engine) {
    engine.Run(engine::test::SampleRequest(engine::test::SomeTokens(30, 1), 10));
  });
  EXPECT_EQ(Sample(text, "ovq_dictionary_updates_total", {"op=\"insert\""}), 31);
  EXPECT_EQ(Sample(text, "ovq_dictionary_updates_total", {"op=\"merge\""}), 5);
  EXPECT_EQ(Sample(text, "ovq_dictionary_fill_ratio_count", {}), 1);
  EXPECT_NEAR(Sample(text, "ovq_dictionary_fill_ratio_sum", {}), 31.0 / 256, 1e-6);
  EXPECT_EQ(Sample(text, "ovq_dictionary_fill_ratio_bucket", {"le=\"0.1\""}), 0);
  EXPECT_EQ(Sample(text, "ovq_dictionary_fill_ratio_bucket", {"le=\"0.2\""}), 1);
}

// Answers of 10 tokens, 1 and none: only the first has a time per token.
TEST(Metrics, TimePerOutputToken) {
  const std::string text = TextAfter([](engine::test::TestEngine& engine) {
    for (int64_t tokens : {10, 1, 0})
      engine.Run(engine::test::SampleRequest(engine::test::SomeTokens(30, 1), tokens));
  });
  EXPECT_EQ(Sample(text, "ovq_time_per_output_token_seconds_count", {}), 1);
  const double sum = Sample(text, "ovq_time_per_output_token_seconds_sum", {});
  EXPECT_GT(sum, 0);
  EXPECT_NEAR(9 * sum, Sample(text, "ovq_inter_token_latency_seconds_sum", {}), 1e-6 + 1e-4 * sum);
}

TEST(Metrics, SessionEvents) {
  Metrics metrics(Named(false));
  const engine::EngineEvents events = metrics.Events();
  events.session_event({.event = "open", .duration = absl::Milliseconds(2), .position = 20});
  events.session_event({.event = "fork", .duration = absl::Milliseconds(1), .position = 20});
  events.session_event({.event = "rewind", .duration = {}, .position = 9, .replayed = 700});
  events.session_event({.event = "export", .duration = {}, .position = 9});
  events.session_event({.event = "export_delta", .duration = {}, .position = 9});
  events.session_event({.event = "import", .duration = {}, .position = 9});
  events.session_event({.event = "close", .duration = absl::Milliseconds(40), .position = 5000});
  events.session_event({.event = "expire", .duration = {}, .position = 3});
  const std::string text = metrics.Text();
  for (const char* event : kEvents) {
    EXPECT_EQ(Sample(text, "ovq_session_events_total", {absl::StrCat("\"", event, "\"")}), 1);
  }
  const auto slower_than = [&](const char* event, const char* seconds) {
    return 1 -
           Sample(text, "ovq_session_event_duration_seconds_bucket",
                  {absl::StrCat("event=\"", event, "\""), absl::StrCat("le=\"", seconds, "\"")});
  };
  EXPECT_EQ(slower_than("open", "0.001"), 1);
  EXPECT_EQ(slower_than("open", "0.0025"), 0);
  EXPECT_EQ(slower_than("close", "0.025"), 1);
  EXPECT_EQ(slower_than("close", "0.05"), 0);
  EXPECT_EQ(Sample(text, "ovq_replayed_tokens_total", {}), 700);
  EXPECT_EQ(Sample(text, "ovq_session_tokens_count", {}), 2);  // at the end of a session only
  EXPECT_EQ(Sample(text, "ovq_session_tokens_sum", {}), 5003);
}

TEST(Metrics, GaugesOfCapacityAndUse) {
  Metrics metrics(Named(false));
  engine::EngineStats stats;
  stats.requests_running = 5;
  stats.requests_blocked = 2;
  stats.sessions_active = 5;
  stats.sessions_idle = 3;
  stats.session_slots = 40;
  stats.state_bytes_reserved = 300;
  metrics.SetSource<engine::EngineStats>([&] { return stats; });
  EXPECT_EQ(Sample(metrics.Text(), "ovq_session_state_utilization_ratio", {}), 0);  // no budget
  stats.state_bytes_budget = 1200;
  const std::string text = metrics.Text();
  EXPECT_EQ(Sample(text, "ovq_requests_blocked", {}), 2);
  EXPECT_EQ(Sample(text, "ovq_session_slots", {}), 40);
  EXPECT_EQ(Sample(text, "ovq_session_slots_used", {}), 8);
  EXPECT_EQ(Sample(text, "ovq_session_state_utilization_ratio", {}), 0.25);
}

TEST(Metrics, PrefixCache) {
  Metrics metrics(Named(false));
  EXPECT_EQ(Sample(metrics.Text(), "ovq_prefix_queries_total", {}), 0);
  engine::test::TestEngine engine;
  metrics.SetSource<engine::EngineStats>([&] { return engine.SettledStats(); });
  engine::GenerateRequest request =
      engine::test::SampleRequest(engine::test::SomeTokens(700, 1), 1);
  request.cacheable = 700;
  for (int i = 0; i < 4; ++i) engine.Run(request);
  request.prompt[0] ^= 1;
  engine.Run(request);
  request.cacheable = 0;
  engine.Run(request);
  const std::string text = metrics.Text();
  EXPECT_EQ(Sample(text, "ovq_prefix_queries_total", {}), 5);
  // A copy with which two prompts have begun is shared from then on.
  EXPECT_EQ(Sample(text, "ovq_prefix_hits_total", {"kind=\"prompt\""}), 2);
  EXPECT_EQ(Sample(text, "ovq_prefix_cached_tokens_total", {"kind=\"prompt\""}), 2 * 699);
  EXPECT_EQ(Sample(text, "ovq_prefix_hits_total", {"kind=\"shared\""}), 1);
  EXPECT_EQ(Sample(text, "ovq_prefix_cached_tokens_total", {"kind=\"shared\""}), 699);
  EXPECT_EQ(Sample(text, "ovq_prefix_hits_total", {"kind=\"answer\""}), 0);
  EXPECT_EQ(Sample(text, "ovq_prefix_lost_tokens_total", {}), 0);
  EXPECT_EQ(Sample(text, "ovq_prefix_not_kept_total", {"reason=\"not_cacheable\""}), 1);
  for (const char* reason : {"too_short", "no_memory", "busy"}) {
    EXPECT_EQ(Sample(text, "ovq_prefix_not_kept_total", {absl::StrCat("reason=\"", reason, "\"")}),
              0);
  }
  EXPECT_EQ(Sample(text, "ovq_prefix_evictions_total", {}), 0);
  EXPECT_EQ(Sample(text, "ovq_prefix_bytes", {"kind=\"used\""}),
            2 * static_cast<double>(
                    engine.model().layout().live_bytes_at(699, engine::test::kDefaultSlotCap) +
                    engine::kPrefixNodeBytes + 699 * sizeof(int32_t)) +
                static_cast<double>(engine::kPrefixNodeBytes));
  EXPECT_EQ(Sample(text, "ovq_prefix_bytes", {"kind=\"budget\""}), 1 << 28);
}

TEST(Metrics, OfTheProcess) {
  Metrics metrics(Named(false));
  const std::string before = metrics.Text();
  const double cpu = Sample(before, "process_cpu_seconds_total", {});
  EXPECT_GT(cpu, 0);
  EXPECT_GE(Sample(before, "process_threads", {}), 1);
  EXPECT_GT(Sample(before, "process_max_fds", {}), Sample(before, "process_open_fds", {}));
  EXPECT_GT(Sample(before, "process_virtual_memory_bytes", {}),
            Sample(before, "process_resident_memory_bytes", {}));
  const double busy_until = cpu + 0.02;
  double used = 0;
  while (used < busy_until) used = Sample(metrics.Text(), "process_cpu_seconds_total", {});
}

// Threads and connections of the tests before may still be ending, so it has several attempts.
TEST(Metrics, FilesAndThreadsOfTheProcess) {
  Metrics metrics(Named(false));
  double files_more = 0, threads_more = 0;
  const auto patience = std::chrono::steady_clock::now() + std::chrono::seconds(30);
  while ((files_more != 3 || threads_more != 1) && std::chrono::steady_clock::now() < patience) {
    const std::string before = metrics.Text();
    std::vector<std::ifstream> files;
    for (int i = 0; i < 3; ++i) files.emplace_back("/dev/null");
    absl::Notification done;
    std::thread thread([&] { done.WaitForNotification(); });
    const std::string after = metrics.Text();
    done.Notify();
    thread.join();
    const auto more = [&](const char* name) {
      return Sample(after, name, {}) - Sample(before, name, {});
    };
    files_more = more("process_open_fds");
    threads_more = more("process_threads");
  }
  EXPECT_EQ(files_more, 3);
  EXPECT_EQ(threads_more, 1);
}

TEST(Metrics, MemoryOfAGpu) {
  ModelDescription info;
  info.device = "cuda";
  info.weight_bytes = 10;
  engine::EngineStats stats;
  stats.gpu = kernels::GpuInfo{.name = "a GPU", .total_bytes = 100, .free_bytes = 40};
  for (bool has_gpu : {true, false}) {
    info.has_gpu = has_gpu;
    Metrics metrics(info);
    metrics.SetSource<engine::EngineStats>([&] { return stats; });
    const std::string text = metrics.Text();
    const auto bytes = [&](const char* kind) {
      return Sample(text, "ovq_device_memory_bytes",
                    {"device=\"cuda\"", absl::StrCat("kind=\"", kind, "\"")});
    };
    EXPECT_EQ(bytes("weights"), 10);
    EXPECT_EQ(bytes("total"), has_gpu ? 100 : -1);
    EXPECT_EQ(bytes("free"), has_gpu ? 40 : -1);
  }
}

TEST(Metrics, WhatWeightsAreHeldAs) {
  ModelDescription info;
  info.compute_dtype = "bf16";
  info.weights = "int8";
  EXPECT_EQ(Sample(Metrics(info).Text(), "ovq_model_info",
                   {"compute_dtype=\"bf16\"", "weights=\"int8\""}),
            1);
}

TEST(Server, MetricsMove) {
  TestServer server;
  const std::string before = server.metrics().Text();
  for (const char* family : {"ovq_requests_total",
                             "ovq_requests_finished_total",
                             "ovq_admission_rejections_total",
                             "ovq_requests_running",
                             "ovq_requests_waiting",
                             "ovq_waiting_prompt_tokens",
                             "ovq_requests_blocked",
                             "ovq_time_to_first_token_seconds",
                             "ovq_time_per_output_token_seconds",
                             "ovq_inter_token_latency_seconds",
                             "ovq_request_duration_seconds",
                             "ovq_request_queue_seconds",
                             "ovq_request_prefill_seconds",
                             "ovq_request_decode_seconds",
                             "ovq_prompt_tokens_total",
                             "ovq_generated_tokens_total",
                             "ovq_request_prompt_tokens",
                             "ovq_request_generated_tokens",
                             "ovq_step_tokens",
                             "ovq_step_duration_seconds",
                             "ovq_sessions",
                             "ovq_session_events_total",
                             "ovq_session_imports_total",
                             "ovq_session_event_duration_seconds",
                             "ovq_session_tokens",
                             "ovq_session_slots",
                             "ovq_session_slots_used",
                             "ovq_session_state_bytes",
                             "ovq_session_state_utilization_ratio",
                             "ovq_dictionary_fill_ratio",
                             "ovq_dictionary_updates_total",
                             "ovq_equivalent_kv_cache_bytes",
                             "ovq_prefix_queries_total",
                             "ovq_prefix_hits_total",
                             "ovq_prefix_cached_tokens_total",
                             "ovq_prefix_evictions_total",
                             "ovq_prefix_bytes",
                             "ovq_constraint_compile_seconds",
                             "ovq_constraint_cache_hits_total",
                             "ovq_constraint_cache_bytes",
                             "ovq_constraint_refusals_total",
                             "ovq_constraint_masks_total",
                             "ovq_constraint_seconds_total",
                             "ovq_constraint_forced_tokens_total",
                             "ovq_constraint_matchers",
                             "ovq_constraint_mask_bytes",
                             "ovq_host_seconds_total",
                             "ovq_host_charged_seconds_total",
                             "ovq_calls_held_total",
                             "ovq_row_seconds",
                             "ovq_centroids_live",
                             "ovq_cancel_release_seconds",
                             "ovq_stream_blocked_seconds_total",
                             "ovq_device_memory_bytes",
                             "ovq_ready",
                             "ovq_draining",
                             "ovq_build_info",
                             "ovq_model_info",
                             "process_cpu_seconds_total",
                             "process_open_fds",
                             "process_max_fds",
                             "process_virtual_memory_bytes",
                             "process_threads",
                             "process_resident_memory_bytes",
                             "process_start_time_seconds"}) {
    EXPECT_NE(before.find(absl::StrCat("# TYPE ", family, " ")), std::string::npos) << family;
  }
  EXPECT_EQ(Sample(before, "ovq_requests_finished_total", {"reason=\"length\""}), 0);
  server.NewSession();
  EXPECT_THAT(Generate(server.inference(), TextRequest("abc", 20)).status, Succeeds());
  EXPECT_FALSE(Generate(server.inference(), TextRequest("", 20)).status.ok());
  server.WaitForStats(
      [](const engine::EngineStats& s) { return s.requests_running == 0 && s.sessions_idle == 1; });
  const std::string after = server.metrics().Text();
  EXPECT_EQ(Sample(after, "ovq_requests_finished_total", {"reason=\"length\""}), 1);
  EXPECT_EQ(Sample(after, "ovq_generated_tokens_total", {}), 20);
  EXPECT_EQ(Sample(after, "ovq_prompt_tokens_total", {}), 3);
  EXPECT_EQ(Sample(after, "ovq_time_to_first_token_seconds_count", {}), 1);
  EXPECT_EQ(Sample(after, "ovq_inter_token_latency_seconds_count", {}), 19);
  EXPECT_EQ(Sample(after, "ovq_sessions", {"state=\"idle\""}), 1);
  EXPECT_GE(Sample(after, "ovq_session_events_total", {"event=\"open\""}), 1);
  EXPECT_GT(Sample(after, "ovq_session_state_bytes", {"kind=\"committed\""}), 0);
  EXPECT_GT(Sample(after, "process_resident_memory_bytes", {}), 1 << 20);
  for (const char* code : {"OK", "INVALID_ARGUMENT"}) {
    EXPECT_EQ(Sample(after, "ovq_requests_total",
                     {"method=\"Generate\"", absl::StrCat("code=\"", code, "\"")}),
              1);
  }
}

}  // namespace
}  // namespace ovq::server::test
