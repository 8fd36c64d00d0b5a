// Submits messages to the engine, and turns its events into messages.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "ovq/v1/inference.pb.h"
#include "server/calls/convert.h"
#include "server/calls/service_context.h"
#include "server/engine/common/engine_api.h"

namespace ovq::server {

// The most bytes that a request's events take while they wait for the client.
inline size_t StreamBytes(const engine::GenerateRequest& request) {
  constexpr size_t kEventBytes = 512;
  return engine::TokenStream::kCapacity *
         (kEventBytes +
          sizeof(model::TokenLogprob) * static_cast<size_t>(request.output.top_logprobs));
}

// Maps and tokenizes the message, takes StreamBytes from the call's memory, and submits the
// request; prompt_scores: OutputOptions::prompt_scores, whose memory is the call's, too. Errors:
// those of the mapping and of Engine::Submit. May block, so never on the engine's
// thread.
absl::Status SubmitGenerate(const v1::GenerateRequest& message, CallRecord& call,
                            std::shared_ptr<engine::TokenStream> stream,
                            std::optional<int> prompt_scores = {});

// The error that SubmitGenerate would have for the message itself. May block.
absl::Status CheckGenerate(const v1::GenerateRequest& message, CallRecord& call);

// A row for each token, as in engine::ScoreResult.
using ScoreDone = std::function<void(absl::StatusOr<std::vector<model::TokenScore>>)>;
// Takes memory for the scores and an answer made of them from the call's, and submits the tokens
// with the message's other fields. `done` is called on a thread that may block, within the call's
// life.
absl::Status SubmitScore(const v1::ScoreRequest& message, std::vector<int32_t> tokens,
                         CallRecord& call, ScoreDone done);

// Appends an engine event as messages, of which it may need several. `add` appends a new message
// and returns it.
template <class Add>
void ToMessages(const engine::StreamEvent& event, Add add) {
  if (event.started) Fill(*event.started, *add().mutable_started());
  if (event.chunk) Fill(*event.chunk, *add().mutable_chunk());
  if (event.finished) Fill(*event.finished, *add().mutable_finished());
}

}  // namespace ovq::server
