// A request to the engine over HTTP, from its submission to the end of its answer.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "ovq/v1/inference.pb.h"
#include "server/calls/work_queue.h"
#include "server/http/answer_writer.h"
#include "server/http/http_call.h"

namespace ovq {

// Tokens wait in the engine's TokenStream until the client has taken those before: a slow client
// fills its own stream, and the engine then parks that request alone. A client that goes cancels
// it.
class GenerationCall final : public std::enable_shared_from_this<GenerationCall> {
 public:
  struct Hooks {
    // Of an error before the answer has begun: as the client gets it.
    std::function<absl::Status(const absl::Status&)> translate_error = nullptr;
    // When the engine is done with it, before the answer ends; may block. Its status is the call's.
    std::function<absl::Status(absl::Status)> ended = nullptr;
  };
  GenerationCall(std::shared_ptr<HttpCall> call, std::unique_ptr<AnswerWriter> writer, Hooks hooks);
  // On a thread that may block.
  void Start(const v1::GenerateRequest& message);

 private:
  // --- on the strand ---
  void Collect();
  void Finish(absl::Status status);
  // What an answer that is not streamed holds until it is sent. False: too much; it is cancelled.
  bool Hold(const StreamEvent& event);
  // Of the server's stream: Exchange::Source.
  bool Events(std::string& out, absl::Status& status);
  // What the hook says, or at once the engine's; unset until the hook is through.
  std::optional<absl::Status> Ended(const absl::Status& status);
  void Wake();  // any thread

  const std::shared_ptr<HttpCall> call_;
  const std::unique_ptr<AnswerWriter> writer_;
  const Hooks hooks_;
  const std::shared_ptr<TokenStream> stream_ = std::make_shared<TokenStream>();
  Strand strand_;
  std::atomic<bool> streaming_ = false;
  std::atomic<bool> ending_ = false, ended_ = false;
  absl::Status end_;      // of the hook, once ended_
  absl::Status refused_;  // why it was cancelled here
  size_t held_ = 0;
  std::shared_ptr<GenerationCall> self_;  // until the end
};

}  // namespace ovq
