// Requests to the engine for one answer over HTTP, from their submission to its end.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

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
  // Whether it keeps what the events say until End, for which the call's memory is taken.
  virtual bool keeps() const { return !streams(); }
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

using TranslateError = std::function<absl::Status(const absl::Status&)>;

// One of the engine's requests for an answer.
struct Generation {
  // Submits the request, or fills the stream itself. Called on a thread that may block, before any
  // event of the call.
  std::function<absl::Status(CallRecord& call, std::shared_ptr<engine::TokenStream> stream)> submit;
  int first_choice = 0;  // what the writer gets for index 0 of the events
  // Events that the writer gets before this one of the engine's; may be null.
  std::function<std::vector<engine::StreamEvent>(const engine::StreamEvent& event)> before = {};
  TranslateError translate_error = nullptr;  // gives the error that the client gets
};

struct GenerationHooks {
  TranslateError translate_error = nullptr;
  // Called when the engine is done, before the answer ends; may block. Its status is the call's.
  std::function<absl::Status(absl::Status)> ended = nullptr;
};

// Submits the requests and hands the engine's events to the client as the writer formats them. A
// client that goes cancels them, and the first error ends all. On a thread that may block.
void StartGenerations(std::shared_ptr<HttpCall> call, std::unique_ptr<AnswerWriter> writer,
                      std::vector<Generation> generations,
                      std::function<absl::Status(absl::Status)> ended = nullptr);
// Starts a single one.
void StartGeneration(std::shared_ptr<HttpCall> call, std::unique_ptr<AnswerWriter> writer,
                     const v1::GenerateRequest& message, GenerationHooks hooks = {});

}  // namespace ovq::server
