// A request to the engine over HTTP, from its submission to the end of its answer.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "ovq/v1/inference.pb.h"
#include "server/engine/common/engine_api.h"
#include "server/http/http_call.h"

namespace ovq::server {

// Formats the engine's events as the body of one HTTP answer. One thread at a time.
class AnswerWriter {
 public:
  virtual ~AnswerWriter() = default;
  virtual bool streams() const = 0;
  // Streams: appends the event's text to `out`. Otherwise keeps the event for End.
  virtual void Add(const engine::StreamEvent& event, std::string& out) = 0;
  // Streams: appends the end of the stream, which tells an error that came after the first event.
  // Otherwise appends the whole answer; status is OK.
  virtual void End(const absl::Status& status, std::string& out) = 0;
};

// Appends one server-sent event: "data: ...".
inline void AppendEvent(std::string_view data, std::string& out) {
  out.append("data: ").append(data).append("\n\n");
}

struct GenerationHooks {
  // Gives the error that the client gets for one that comes before the answer has begun.
  std::function<absl::Status(const absl::Status&)> translate_error = nullptr;
  // Called when the engine is done, before the answer ends; may block. Its status is the call's.
  std::function<absl::Status(absl::Status)> ended = nullptr;
};

// Submits the request and hands the engine's events to the client as the writer formats them. A
// client that goes cancels the request. On a thread that may block.
void StartGeneration(std::shared_ptr<HttpCall> call, std::unique_ptr<AnswerWriter> writer,
                     const v1::GenerateRequest& message, GenerationHooks hooks = {});

}  // namespace ovq::server
