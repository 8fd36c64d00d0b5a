// A request to the engine over HTTP, from its submission to the end of its answer.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "ovq/v1/inference.pb.h"
#include "server/calls/token_pump.h"
#include "server/calls/work_queue.h"
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

// The engine's events go to the client through a TokenPump. A client that goes cancels the request.
class GenerationCall final : public TokenSink, public std::enable_shared_from_this<GenerationCall> {
 public:
  struct Hooks {
    // Gives the error that the client gets for one that comes before the answer has begun.
    std::function<absl::Status(const absl::Status&)> translate_error = nullptr;
    // Called when the engine is done, before the answer ends; may block. Its status is the call's.
    std::function<absl::Status(absl::Status)> ended = nullptr;
  };
  GenerationCall(std::shared_ptr<HttpCall> call, std::unique_ptr<AnswerWriter> writer, Hooks hooks);
  // On a thread that may block.
  void Start(const v1::GenerateRequest& message);

  void OnEvent(const engine::StreamEvent& event) override;
  void OnStreamEnd(const absl::Status& status) override;
  void Wake() override;  // any thread

 private:
  // Advances the pump on the strand, until the first event of an answer that is streamed.
  void Collect();
  // Advances it from then on, where the connection writes: HttpCall::Events.
  bool Events(std::string& out, absl::Status& status);
  // Takes the memory that an event needs until an answer that is not streamed is sent. False: there
  // is no room, and the request is refused.
  bool Hold(const engine::StreamEvent& event);
  void Finish();  // an answer that is not streamed, or an error

  const std::shared_ptr<HttpCall> call_;
  const std::unique_ptr<AnswerWriter> writer_;
  const Hooks hooks_;
  Strand strand_;
  TokenPump pump_;
  std::string out_;  // written, and still to be sent
  std::atomic<bool> streaming_ = false;
  std::atomic<bool> ended_ = false;       // by the hook, too
  absl::Status end_;                      // the call's, once ended_
  size_t held_ = 0;                       // bytes of an answer that is not streamed
  std::shared_ptr<GenerationCall> self_;  // until the end
};

}  // namespace ovq::server
