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

absl::Status SubmitGenerate(const v1::GenerateRequest& message, const Caller& caller,
                            CallRecord& record, ByteHold& memory,
                            std::shared_ptr<engine::TokenStream> stream) {
  engine::Engine& engine = record.services().engine;
  record.summary().tenant = caller.tenant;
  record.summary().SetSession(message.session_id());
  engine::GenerateRequest request;
  request.tenant = caller.tenant;
  request.client = caller.client;
  request.arrival = record.arrival();
  request.deadline = record.deadline();
  RETURN_IF_ERROR(Map(message, engine, request));
  RETURN_IF_ERROR(ReserveBytes(memory, StreamBytes(request)));
  return engine.Submit(std::move(request), std::move(stream));
}

}  // namespace ovq::server
