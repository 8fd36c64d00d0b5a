// Sends spans of calls to a collector: OTLP over HTTP in JSON (opentelemetry.io/docs/specs/otlp).
// No gRPC here. Calls never wait for it: spans that find the queue full are dropped and counted.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "server/http_client/http_post.h"

namespace ovq::server {

// The collector of spans: http[s]://HOST:PORT[/PATH], by default /v1/traces.
using TraceCollector = HttpTarget;
std::optional<TraceCollector> ParseTraceCollector(std::string_view url);

struct FinishedSpan {
  enum class Kind : uint8_t { kInternal = 1, kServer = 2 };  // the schema's numbers

  std::string trace_id, span_id, parent_id, state;  // as in Span; parent_id "": none
  std::string name;
  Kind kind = Kind::kInternal;
  absl::Time start, end;
  std::vector<std::pair<std::string, std::variant<std::string, int64_t>>> attributes = {};
  absl::Status status = absl::OkStatus();
};

std::string NewSpanId();  // 16 hexadecimal digits

// The body of one request: ExportTraceServiceRequest of trace_service.proto in its JSON mapping.
std::string OtlpJson(const std::vector<FinishedSpan>& spans);

struct TraceCounts {
  int64_t sent = 0;
  int64_t dropped = 0;  // the queue was full
  int64_t failed = 0;   // the collector did not answer, or rejected them
};

// Any thread.
class TraceExporter {
 public:
  static constexpr size_t kMaxQueue = 8192;  // waiting spans
  static constexpr size_t kMaxBatch = 512;   // spans in one request

  explicit TraceExporter(TraceCollector collector, size_t max_queue = kMaxQueue);
  // Sends the waiting spans, for at most some seconds.
  ~TraceExporter();
  TraceExporter(const TraceExporter&) = delete;
  TraceExporter& operator=(const TraceExporter&) = delete;

  void Add(FinishedSpan span);
  TraceCounts counts() const;

 private:
  void Run();

  const TraceCollector collector_;
  const size_t max_queue_;
  mutable std::mutex mutex_;  // guards the next four
  std::deque<FinishedSpan> queue_;
  TraceCounts counts_;
  bool ending_ = false;
  std::condition_variable changed_;
  std::thread thread_;
};

}  // namespace ovq::server
