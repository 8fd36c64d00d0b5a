#include "server/calls/generation.h"

#include <utility>

#include "base/status_macros.h"
#include "server/engine/common/validate.h"

namespace ovq::server {
namespace {

absl::Status Map(const v1::GenerateRequest& from, engine::Engine& engine,
                 engine::GenerateRequest& to) {
  PromptPlace place;
  if (from.has_session_id()) {
    RETURN_IF_ERROR(engine::CheckSessionId(from.session_id(), ""));
    to.session_id = from.session_id();
    place = FindPromptPlace(engine, to.session_id, to.tenant);
  }
  to.variant = from.memory();
  if (from.has_max_centroids()) to.slot_cap = static_cast<int32_t>(from.max_centroids());
  return SetGeneration(from, place, engine, to);
}

}  // namespace

absl::Status SubmitGenerate(const v1::GenerateRequest& message, CallRecord& call,
                            std::shared_ptr<engine::TokenStream> stream) {
  engine::Engine& engine = call.services().engine;
  call.summary().SetSession(message.session_id());
  engine::GenerateRequest request;
  call.SetCaller(request);
  request.arrival = call.arrival();
  RETURN_IF_ERROR(Map(message, engine, request));
  RETURN_IF_ERROR(ReserveBytes(call.memory(), StreamBytes(request)));
  return engine.Submit(std::move(request), std::move(stream));
}

}  // namespace ovq::server
