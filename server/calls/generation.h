// A v1::GenerateRequest on its way to the engine, and what comes back as messages.
#pragma once

#include <cstddef>
#include <memory>

#include "absl/status/status.h"
#include "ovq/v1/inference.pb.h"
#include "server/calls/convert.h"
#include "server/calls/service_context.h"
#include "server/engine/engine_api.h"

namespace ovq {

// What the answers of a request take while they wait for their reader, at most.
inline size_t StreamBytes(const GenerateRequest& request) {
  constexpr size_t kEventBytes = 512;
  return TokenStream::kCapacity *
         (kEventBytes + sizeof(TokenLogprob) * static_cast<size_t>(request.output.top_logprobs));
}

// Maps and tokenizes it, takes the bytes of its answers from `memory`, and gives it to the engine.
// Errors are those of the mapping and of Engine::Submit. It may block: not on the engine's thread.
absl::Status SubmitGenerate(const v1::GenerateRequest& message, const Caller& caller,
                            CallRecord& record, ByteHold& memory,
                            std::shared_ptr<TokenStream> stream);

// An event of the engine may hold several of the proto's: `add` makes room for one and gives it.
template <class Add>
void ToMessages(const StreamEvent& event, Add add) {
  if (event.started) Fill(*event.started, *add().mutable_started());
  if (event.chunk) Fill(*event.chunk, *add().mutable_chunk());
  if (event.finished) Fill(*event.finished, *add().mutable_finished());
}

}  // namespace ovq
