#include "server/telemetry/trace_export.h"

#include <algorithm>
#include <chrono>
#include <memory>
#include <nlohmann/json.hpp>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/text.h"
#include "base/thread_name.h"
#include "server/engine/common/error_facts.h"
#include "server/telemetry/trace_context.h"

namespace ovq::server {
namespace {

using Json = nlohmann::json;

// A batch is sent when it is full, or this long after its first span.
constexpr auto kBatchTime = std::chrono::milliseconds(500);
constexpr absl::Duration kPatience = absl::Seconds(2);  // to connect, to write, to read

Json Attribute(const std::string& key, const std::variant<std::string, int64_t>& value) {
  // protobuf's JSON mapping writes 64-bit integers as text.
  if (const auto* number = std::get_if<int64_t>(&value)) {
    return {{"key", key}, {"value", {{"intValue", absl::StrCat(*number)}}}};
  }
  return {{"key", key}, {"value", {{"stringValue", std::get<std::string>(value)}}}};
}

std::string Nanoseconds(absl::Time time) { return absl::StrCat(absl::ToUnixNanos(time)); }

Json ToJson(const FinishedSpan& span) {
  Json out = {{"traceId", span.trace_id},
              {"spanId", span.span_id},
              {"name", span.name},
              {"kind", static_cast<int>(span.kind)},
              {"startTimeUnixNano", Nanoseconds(span.start)},
              {"endTimeUnixNano", Nanoseconds(span.end)},
              {"attributes", Json::array()}};
  if (!span.parent_id.empty()) out["parentSpanId"] = span.parent_id;
  if (!span.state.empty()) out["traceState"] = span.state;
  for (const auto& [key, value] : span.attributes) {
    out["attributes"].push_back(Attribute(key, value));
  }
  // 2 is STATUS_CODE_ERROR; the schema wants the status unset without an error. A collector, like
  // the log, must not get the part of a message that quotes the caller's input.
  if (!span.status.ok()) out["status"] = {{"code", 2}, {"message", engine::LogText(span.status)}};
  return out;
}

// The number of `spans` that the collector rejected by its answer `body`, which may be anything.
int64_t Rejected(const std::string& body, int64_t spans) {
  const Json answer = Json::parse(body, nullptr, /*allow_exceptions=*/false);
  if (!answer.is_object() || !answer.contains("partialSuccess")) return 0;
  const Json& partial = answer["partialSuccess"];
  if (!partial.is_object() || !partial.contains("rejectedSpans")) return 0;
  const Json& count = partial["rejectedSpans"];  // a 64-bit integer as text, or a number
  int64_t rejected = 0;
  if (count.is_number_integer()) rejected = count.get<int64_t>();
  if (count.is_string() && !absl::SimpleAtoi(count.get<std::string>(), &rejected)) return 0;
  return std::clamp(rejected, int64_t{0}, spans);
}

// Sends one batch. Returns how many of its spans the collector took, nullopt if it does not answer.
std::optional<int64_t> Post(const TraceCollector& collector,
                            const std::vector<FinishedSpan>& batch) {
  const std::optional<HttpAnswer> answer = PostJson(collector, OtlpJson(batch), kPatience);
  if (!answer) return std::nullopt;
  const auto spans = static_cast<int64_t>(batch.size());
  if (answer->status / 100 != 2) return 0;
  return spans - Rejected(answer->body, spans);
}

}  // namespace

std::optional<TraceCollector> ParseTraceCollector(std::string_view url) {
  const bool tls = url.starts_with("https://");
  if (!tls && !url.starts_with("http://")) return std::nullopt;
  url.remove_prefix(url.find("//") + 2);
  const size_t slash = std::min(url.find('/'), url.size());
  const std::string_view address = url.substr(0, slash), path = url.substr(slash);
  const size_t colon = address.rfind(':');
  if (colon == std::string_view::npos || colon == 0) return std::nullopt;
  const std::string_view port = address.substr(colon + 1);
  int number = 0;
  if (!absl::SimpleAtoi(AbslView(port), &number) || number < 1 || number > 65535) {
    return std::nullopt;
  }
  for (const char c : url) {  // not allowed in a request's first lines
    if (c <= ' ' || c == 0x7F) return std::nullopt;
  }
  std::string_view host = address.substr(0, colon);
  if (host.starts_with('[') && host.ends_with(']')) host = host.substr(1, host.size() - 2);
  return TraceCollector{.tls = tls,
                        .host = std::string(host),
                        .port = number,
                        .path = path.empty() ? "/v1/traces" : std::string(path)};
}

std::string NewSpanId() { return NewRequestId().substr(0, 16); }

std::string OtlpJson(const std::vector<FinishedSpan>& spans) {
  Json list = Json::array();
  for (const FinishedSpan& span : spans) list.push_back(ToJson(span));
  const Json scope = {{"name", "ovq-server"}, {"version", OVQ_VERSION}};
  const Json resource = {
      {"attributes",
       {Attribute("service.name", "ovq-server"), Attribute("service.version", OVQ_VERSION)}}};
  const Json scoped = {{"scope", scope}, {"spans", std::move(list)}};
  const Json all = {{"resource", resource}, {"scopeSpans", Json::array({scoped})}};
  const Json request = {{"resourceSpans", Json::array({all})}};
  return request.dump(-1, ' ', false, Json::error_handler_t::replace);
}

TraceExporter::TraceExporter(TraceCollector collector, size_t max_queue)
    : collector_(std::move(collector)), max_queue_(max_queue), thread_([this] { Run(); }) {}

TraceExporter::~TraceExporter() {
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
  }
  changed_.notify_one();
  thread_.join();
}

void TraceExporter::Add(FinishedSpan span) {
  {
    const std::lock_guard lock(mutex_);
    if (queue_.size() >= max_queue_) {
      ++counts_.dropped;
      return;
    }
    queue_.push_back(std::move(span));
    if (queue_.size() != 1 && queue_.size() != kMaxBatch) return;
  }
  changed_.notify_one();
}

TraceCounts TraceExporter::counts() const {
  const std::lock_guard lock(mutex_);
  return counts_;
}

void TraceExporter::Run() {
  NameThisThread("traces");
  bool reachable = true;
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return ending_ || !queue_.empty(); });
    changed_.wait_for(lock, kBatchTime, [this] { return ending_ || queue_.size() >= kMaxBatch; });
    // At the end a collector that does not answer gets one more batch, not all of them.
    if (queue_.empty() || (ending_ && !reachable)) {
      counts_.failed += static_cast<int64_t>(queue_.size());
      return;
    }
    std::vector<FinishedSpan> batch;
    while (!queue_.empty() && batch.size() < kMaxBatch) {
      batch.push_back(std::move(queue_.front()));
      queue_.pop_front();
    }
    lock.unlock();
    const std::optional<int64_t> taken = Post(collector_, batch);
    lock.lock();
    reachable = taken.has_value();
    counts_.sent += taken.value_or(0);
    counts_.failed += static_cast<int64_t>(batch.size()) - taken.value_or(0);
  }
}

}  // namespace ovq::server
